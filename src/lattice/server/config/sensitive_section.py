"""The section `sensitive` of the server: the bucket of sensitive work, and the site's keys.

The keys are in a file or in a token behind PKCS#11. `lattice.server.engines` opens both.
"""
# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lattice.adapters.sitekeys.file import BadKeyFile, read_key_file
from lattice.base.config import ConfigReport
from lattice.base.config_checks import check_file
from lattice.base.setting import setting
from lattice.server.config.engine_sections import ObjectsSection

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_LONGEST_LABEL = 32
"""CK_TOKEN_INFO has room for so many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitiveSection:
    bucket: str | None = setting(
        None,
        "A bucket of its own for what jobs of `sensitive` vClusters write, in the store of "
        "`objects`. Needed with such a vCluster.",
    )
    keys_file: Path | None = setting(
        None,
        "The site's keys that wrap the data keys of allocations: in each line a name and 64 hex "
        "digits, the newest last. Readable by the server alone. Read for each question.",
    )
    pkcs11_module: Path | None = setting(
        None, "In place of `keys_file`: the library of a PKCS#11 token that holds the keys."
    )
    pkcs11_token: str = setting("", "The label of that token.")
    pkcs11_pin_file: Path | None = setting(
        None, "File with the PIN of the token's user. Read for each question."
    )
    pkcs11_key: str = setting(
        "", "The label of the key that wraps; older keys on the token still unwrap."
    )

    @property
    def has_keys(self) -> bool:
        """True if the site's keys are named."""
        return self.keys_file is not None or self.pkcs11_module is not None


def judge_sensitive(
    sensitive: SensitiveSection,
    objects: ObjectsSection,
    *,
    audit_bucket: str | None,
    report: ConfigReport,
) -> None:
    """Check rules between keys. Which vCluster needs them is judged with the vClusters."""
    _bucket(sensitive, objects, audit_bucket, report)
    _token(sensitive, report)
    path, file = "sensitive.keys_file", sensitive.keys_file
    if file is not None and check_file(path, file, report):
        try:
            read_key_file(file)
        except (BadKeyFile, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            report.problem(path, f"{file} {reason}")


def _bucket(
    sensitive: SensitiveSection,
    objects: ObjectsSection,
    audit_bucket: str | None,
    report: ConfigReport,
) -> None:
    path, bucket = "sensitive.bucket", sensitive.bucket
    if bucket is None:
        return
    if not _BUCKET.fullmatch(bucket):
        report.problem(path, f"{bucket[:64]!r} is no name of a bucket")
    elif objects.url is None or not objects.url.is_s3:
        report.problem(path, "needs objects.url with s3://", "objects.url")
    elif bucket == objects.url.bucket:
        report.problem(path, "is the bucket of objects: name one of its own", "objects.url")
    elif bucket == audit_bucket:
        report.problem(path, "is the bucket of audit: name one of its own", "audit.bucket")


def _token(sensitive: SensitiveSection, report: ConfigReport) -> None:
    module = "sensitive.pkcs11_module"
    others = ("pkcs11_token", "pkcs11_pin_file", "pkcs11_key")
    if sensitive.pkcs11_module is None:
        for name in (each for each in others if getattr(sensitive, each)):
            report.problem(f"sensitive.{name}", f"needs {module} too", module)
        return
    if sensitive.keys_file is not None:
        report.problem(module, "goes with no file: name one of the two", "sensitive.keys_file")
    for name in (each for each in others if not getattr(sensitive, each)):
        report.problem(module, f"needs sensitive.{name} too", f"sensitive.{name}")
    if len(sensitive.pkcs11_token.encode()) > _LONGEST_LABEL:
        text = f"has more than {_LONGEST_LABEL} bytes: no token has such a label"
        report.problem("sensitive.pkcs11_token", text)
    check_file(module, sensitive.pkcs11_module, report)
    pin = "sensitive.pkcs11_pin_file"
    check_file(pin, sensitive.pkcs11_pin_file, report, secret=True)
