"""Opens the engines of a server: Slurm, the stores, and the verifier of tokens."""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from lattice.access.grants import GrantSigner
from lattice.access.tokens import TokenVerifier
from lattice.adapters.helper.administration import AdministrationGate, HelperAdministration
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.gate import HelperGate
from lattice.adapters.helper.reservations import HelperReservations
from lattice.adapters.http_store import HttpAddress
from lattice.adapters.metricstore.store import HttpMetricStore
from lattice.adapters.mlflow.store import MlflowRunStore
from lattice.adapters.objects.folder import FolderObjectStore
from lattice.adapters.objects.lock import S3LockReader
from lattice.adapters.objects.s3 import S3Address, S3ObjectStore
from lattice.adapters.oidc.discovery import DiscoveredProvider, provider_client
from lattice.adapters.oidc.keys import KeyCache
from lattice.adapters.oidc.verify import HmacVerifier, JwksVerifier, NoVerifier
from lattice.adapters.own_tokens import OwnOrElse, OwnTokens
from lattice.adapters.pki.authority import ClusterAuthority
from lattice.adapters.pki.files import believed_keys
from lattice.adapters.sitekeys.file import FileSiteKeys
from lattice.adapters.sitekeys.pkcs11 import Pkcs11SiteKeys, Token
from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.scheduler import SlurmReader, SlurmScheduler
from lattice.adapters.slurm.site import SlurmSite
from lattice.adapters.slurm.token_judge import NO_TOKEN, NOBODY, SlurmTokenJudge
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import ConfigurationError
from lattice.base.signatures import KeyRing, SigningKey
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.administration import Administration
from lattice.domain.metricstore import MetricStore
from lattice.domain.object_lock import LockReader
from lattice.domain.objects import ObjectStore
from lattice.domain.reservation import Reservations
from lattice.domain.site_keys import SiteKeys
from lattice.domain.submission import SubmitGate
from lattice.domain.training_run import RunStore
from lattice.domain.vcluster import Vclusters
from lattice.foundation.own_metrics import OwnMetrics
from lattice.server.config.api_section import ApiSection, AuthMode
from lattice.server.config.engine_sections import ObjectsSection, RunsSection, TelemetrySection
from lattice.server.config.sections import ServerConfig, SlurmSection
from lattice.server.config.sensitive_section import SensitiveSection


def open_own_tokens(config: ServerConfig, clock: Clock) -> OwnTokens | None:
    """Of people who sign in by MUNGE or a Slurm token, or None. Raises `ConfigurationError`."""
    api, identity = config.api, config.identity
    if not api.issues_tokens:
        return None
    if identity.ca_cert is None or identity.ca_key is None or identity.grant_key is None:
        raise ConfigurationError(
            "Signing in by MUNGE or a Slurm token needs the key that signs the server's tokens.",
            hint="Set the section identity, or start with --single.",
        )
    key = SigningKey.load(identity.grant_key)
    before = believed_keys(identity.previous_grant_keys)
    return OwnTokens(
        key,
        KeyRing([key.public, *before]),
        clock,
        audience=ClusterAuthority.load(identity.ca_cert, identity.ca_key, clock).cluster,
        lifetime=timedelta(hours=api.munge_hours),
        user_claim=api.user_claim,
        administrators=frozenset(api.administrators),
    )


@asynccontextmanager
async def open_verifier(
    api: ApiSection, clock: Clock, supervisor: Supervisor, own: OwnTokens | None = None
) -> AsyncIterator[TokenVerifier]:
    """A verifier of own tokens, if there are any, and of the configured ones."""
    if own is not None and api.auth in {AuthMode.MUNGE, AuthMode.SLURM}:
        yield OwnOrElse(own, None)
        return
    async with _open_configured(api, clock, supervisor) as verifier:
        yield verifier if own is None else OwnOrElse(own, verifier)


@asynccontextmanager
async def _open_configured(
    api: ApiSection, clock: Clock, supervisor: Supervisor
) -> AsyncIterator[TokenVerifier]:
    """Issuer before shared secret before none; keys are refreshed while it is open."""
    if api.oidc_issuer is not None:
        async with _issuer_verifier(api, api.oidc_issuer, clock, supervisor) as verifier:
            yield verifier
    elif api.oidc_hmac_secret is not None:
        secret = api.oidc_hmac_secret.reveal().encode()
        yield HmacVerifier(secret, audience=api.audience, clock=clock)
    else:
        yield NoVerifier(own_user(), user_claim=api.user_claim)


@asynccontextmanager
async def _issuer_verifier(
    api: ApiSection, issuer: str, clock: Clock, supervisor: Supervisor
) -> AsyncIterator[TokenVerifier]:
    async with provider_client(api.oidc_ca) as client:
        keys = KeyCache(
            DiscoveredProvider(client, issuer, jwks_uri=api.oidc_jwks_uri).key_set, clock
        )
        try:
            async with supervisor.running(Loop("oidc keys", keys.keep_fresh, OnFailure.RESTART)):
                audience = api.audience or ""
                yield JwksVerifier(
                    keys,
                    issuer=issuer,
                    audience=audience,
                    clock=clock,
                    id_claims=api.oidc_id_claims,
                )
        finally:
            await keys.aclose()


def own_user() -> str:
    """The name of the server's own user, or empty if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        # A user without a name owns no jobs in Slurm.
        return ""


@asynccontextmanager
async def open_metric_store(
    section: TelemetrySection, clock: Clock
) -> AsyncIterator[MetricStore | None]:
    """None if none is configured. It sends nothing yet, so a server starts without the store."""
    if section.tsdb_endpoint is None:
        yield None
        return
    store = HttpMetricStore(
        HttpAddress(
            url=section.tsdb_endpoint,
            username=section.tsdb_username or "",
            password_file=section.tsdb_password_file,
            bearer_file=section.tsdb_bearer_file,
            ca=section.tsdb_ca,
        ),
        clock,
    )
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def open_run_store(section: RunsSection, clock: Clock) -> AsyncIterator[RunStore | None]:
    """None if none is configured. It asks nothing yet: a server starts without the store."""
    if section.mlflow_url is None:
        yield None
        return
    store = MlflowRunStore(
        HttpAddress(
            url=section.mlflow_url,
            username=section.mlflow_username or "",
            password_file=section.mlflow_password_file,
            bearer_file=section.mlflow_bearer_file,
            ca=section.mlflow_ca,
        ),
        clock,
        page_url=section.mlflow_page_url or "",
    )
    try:
        yield store
    finally:
        await store.aclose()


ANY_REGION = "us-east-1"
"""The region for signatures to stores without regions."""


def open_objects(
    objects: ObjectsSection, single: Path | None, *, bucket: str | None = None
) -> ObjectStore | None:
    """None if neither a store nor a folder is configured. Raises `ConfigurationError`.

    `bucket` is used in place of the configured one, without its prefix.
    The section has been checked, so the keys for S3 are set. It sends nothing yet, so a server
    starts without the store.
    """
    url = objects.url
    if url is None:
        return None if single is None else FolderObjectStore(single / "objects")
    if url.folder is not None:
        return FolderObjectStore(url.folder)
    return S3ObjectStore(_s3_address(objects, bucket), SystemClock())


def _s3_address(objects: ObjectsSection, bucket: str | None) -> S3Address:
    assert objects.url is not None
    assert objects.access_key_file is not None
    assert objects.secret_key_file is not None
    endpoint = objects.endpoint or f"https://s3.{objects.region}.amazonaws.com"
    return S3Address(
        bucket=bucket or objects.url.bucket,
        prefix="" if bucket else objects.url.prefix,
        endpoint=endpoint.rstrip("/"),
        region=objects.region or ANY_REGION,
        access_key_file=objects.access_key_file,
        secret_key_file=objects.secret_key_file,
        ca=objects.ca,
        allow_http=endpoint.startswith("http://"),
    )


def open_archive_lock(config: ServerConfig, clock: Clock) -> LockReader | None:
    """The lock of the audit log's bucket; None if it has no bucket of its own."""
    bucket = config.audit.bucket
    if bucket is None:
        return None
    store = open_objects(config.objects, None, bucket=bucket)
    assert store is not None
    return S3LockReader(_s3_address(config.objects, bucket), store, "audit/", clock)


def open_sensitive_objects(config: ServerConfig) -> ObjectStore | None:
    """The bucket of sensitive work; None if the site has none."""
    bucket = config.sensitive.bucket
    return open_objects(config.objects, None, bucket=bucket) if bucket is not None else None


def open_sensitive_lock(config: ServerConfig, clock: Clock) -> LockReader | None:
    """The object lock of the bucket of sensitive work; None if the site has no such bucket."""
    bucket = config.sensitive.bucket
    if bucket is None:
        return None
    store = open_objects(config.objects, None, bucket=bucket)
    assert store is not None
    return S3LockReader(_s3_address(config.objects, bucket), store, "", clock)


def open_site_keys(section: SensitiveSection) -> SiteKeys | None:
    """The site's keys; None if it has none. It asks nothing yet: a server starts without them."""
    if section.keys_file is not None:
        return FileSiteKeys(section.keys_file)
    if section.pkcs11_module is None or section.pkcs11_pin_file is None:
        return None
    return Pkcs11SiteKeys(
        Token(
            section.pkcs11_module,
            section.pkcs11_token,
            section.pkcs11_pin_file,
            section.pkcs11_key,
        )
    )


@asynccontextmanager
async def open_scheduler(
    config: ServerConfig,
    commands: SlurmCommands,
    views: Vclusters,
    clock: Clock,
    figures: OwnMetrics,
    supervisor: Supervisor,
) -> AsyncIterator[SlurmScheduler]:
    """The scheduler, polled until the context ends. Raises `ConfigurationError`."""
    slurm = config.slurm
    if slurm.rest_url is None:
        raise ConfigurationError("slurm.rest_url is not set.", hint="Name slurmrestd's socket.")
    rest = SlurmRest(slurm.rest_url, user=slurm.user or "", token_file=slurm.token_file)
    scheduler = SlurmScheduler(
        rest,
        commands,
        views,
        clock,
        slurm.poll_interval_s,
        reader=SlurmReader(
            account=slurm.user or own_user(),
            commands_user=own_user(),
            job_list=slurm.job_list,
        ),
        shown_name=config.cluster.name,
    )
    figures.watch(lambda: _counts(scheduler))
    try:
        async with supervisor.running(Loop("slurm", scheduler.run, OnFailure.RESTART)):
            yield scheduler
    finally:
        await rest.aclose()


@asynccontextmanager
async def open_token_judge(
    config: ServerConfig, clock: Clock
) -> AsyncIterator[SlurmTokenJudge | None]:
    """None if nobody signs in by a Slurm token. It asks nothing yet: a server starts without it."""
    if not config.api.slurm_tokens:
        yield None
        return
    address = config.api.slurm_tokens_url or config.slurm.rest_url or ""
    rest = SlurmRest(address, user=NOBODY, token=NO_TOKEN)
    try:
        yield SlurmTokenJudge(rest, clock)
    finally:
        await rest.aclose()


def slurm_commands(slurm: SlurmSection) -> SlurmCommands:
    """Slurm's own commands, with this site's settings."""
    return SlurmCommands(slurm.config_file, bin_dir=slurm.bin_dir)


def submit_gate(config: ServerConfig, clock: Clock) -> SubmitGate | None:
    """The gate, or None if nothing can be submitted or cancelled."""
    gate = _gate(config, clock)
    return HelperGate(*gate) if gate is not None else None


def open_administration(config: ServerConfig, site: SlurmSite, clock: Clock) -> Administration:
    """What changes Slurm for administrators: the gate. Without one it refuses."""
    return HelperAdministration(AdministrationGate(_gate(config, clock)), site.read_name)


def open_reservations(config: ServerConfig, site: SlurmSite, clock: Clock) -> Reservations:
    """What reserves nodes for sensitive work: the gate. Without one it refuses."""
    return HelperReservations(AdministrationGate(_gate(config, clock)), site.read_name)


def _gate(config: ServerConfig, clock: Clock) -> tuple[HelperChannel, GrantSigner] | None:
    key = config.gate.grant_key or config.identity.grant_key
    if config.gate.socket is None or key is None:
        return None
    return HelperChannel(config.gate.socket), GrantSigner(SigningKey.load(key), clock)


def _counts(scheduler: SlurmScheduler) -> dict[str, float]:
    counts: dict[str, float] = {
        f"slurm_{name}_{count}": value
        for name, polled in (("jobs", scheduler.jobs), ("nodes", scheduler.nodes))
        for count, value in asdict(polled.counts).items()
    }
    counts["slurm_past_questions_total"] = scheduler.past_reader.questions_total
    return counts
