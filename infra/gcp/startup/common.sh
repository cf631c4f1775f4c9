# shellcheck shell=bash
# Sourced by the startup scripts; the image has it in /usr/local/lib/lattice-cloud.sh.
# The metadata server names secrets; their values come from Secret Manager and go into files of
# mode 0600 alone.
set -euo pipefail
metadata=http://metadata.google.internal/computeMetadata/v1
secrets=https://secretmanager.googleapis.com/v1

meta() { curl -sf -H 'Metadata-Flavor: Google' "$metadata/$1"; }
attribute() { meta "instance/attributes/$1"; }
# A header in a file of this process alone: arguments can be read by everybody on the machine.
authorized() { # CURL-ARGUMENT…
  curl -sf -H @<(printf 'Authorization: Bearer %s\n' \
    "$(meta instance/service-accounts/default/token | jq -r .access_token)") "$@"
}
secret() { # NAME
  authorized "$secrets/projects/$(meta project/project-id)/secrets/$1/versions/latest:access" |
    jq -r .payload.data | base64 -d
}
add_secret() { # NAME, with the value on standard input
  base64 -w0 | jq -R '{payload: {data: .}}' |
    authorized -X POST -H 'Content-Type: application/json' -d @- \
      "$secrets/projects/$(meta project/project-id)/secrets/$1:addVersion" >/dev/null
}
# The metadata server gives the machine's account to whoever asks, jobs of users included. With it
# they could read the MUNGE key, and so become any user of the cluster.
only_root_asks() {
  nft -f - <<'NFT'
table inet lattice_cloud {
  chain output {
    type filter hook output priority 0; policy accept;
    ip daddr 169.254.169.254 tcp dport { 80, 443 } meta skuid != 0 reject
    ip6 daddr fd20:ce::254 tcp dport { 80, 443 } meta skuid != 0 reject
  }
}
NFT
}
begin_slurm() {
  umask 077
  secret "$(attribute munge-key-secret)" >/etc/munge/munge.key
  chown munge: /etc/munge/munge.key && chmod 400 /etc/munge/munge.key
  umask 022
  install -d -m 755 /etc/slurm
  attribute slurm-conf >/etc/slurm/slurm.conf
  systemctl enable --now munge
}
