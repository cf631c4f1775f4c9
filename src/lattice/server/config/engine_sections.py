"""The sections `objects`, `telemetry` and `runs` of the server: the stores that it asks.

`telemetry` also sets how often jobs are sampled. `lattice.server.engines` opens the stores.
"""
# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lattice.base.config import ConfigReport
from lattice.base.config_checks import check_authority, check_file, check_url, is_plain_outside
from lattice.base.setting import setting
from lattice.domain.objects import BadKeyPart, check_key
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.service.modes import MOST_DEBUGGING

LONGEST_PREFIX = 100
"""Together with the longest key it stays within S3's 1 024 bytes."""

_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class ObjectsUrl:
    """A bucket and a prefix in it, or a folder."""

    bucket: str = ""
    prefix: str = ""
    folder: Path | None = None

    @classmethod
    def parse(cls, text: str) -> ObjectsUrl:
        if text.startswith("file:///"):
            folder = Path(text.removeprefix("file://"))
            if ".." in folder.parts or folder == Path("/") or not text.isprintable():
                raise ValueError(
                    "must name a folder of its own, as file:///var/lib/lattice/objects"
                )
            return cls(folder=folder)
        if not text.startswith("s3://"):
            raise ValueError(f"must be s3://bucket/prefix or file:///path, not {text[:60]!r}")
        bucket, _, prefix = text.removeprefix("s3://").rstrip("/").partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise ValueError(f"{bucket[:64]!r} is no name of a bucket")
        if prefix:
            try:
                check_key(prefix)
            except BadKeyPart:
                raise ValueError("the prefix has letters, digits, '-', '_', '.' and '/'") from None
        if len(prefix) > LONGEST_PREFIX:
            raise ValueError(f"the prefix has {len(prefix)} letters; {LONGEST_PREFIX} at most")
        return cls(bucket, prefix)

    @property
    def is_s3(self) -> bool:
        return self.folder is None

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" if self.is_s3 else f"file://{self.folder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsSection:
    url: ObjectsUrl | None = setting(
        None,
        "Where logs are kept: `s3://bucket/prefix`, or `file:///path` for one server alone. Not "
        "set: `objects` in the folder of `--single`, else nowhere.",
    )
    endpoint: str | None = setting(
        None, "The S3 store, as a URL. Not set: AWS, in `objects.region`."
    )
    region: str | None = setting(None, "Region, for stores that have them.")
    access_key_file: Path | None = setting(
        None, "File with the access key. Read again when it changes."
    )
    secret_key_file: Path | None = setting(None, "File with the secret key; the same.")
    ca: Path | None = setting(None, "Authorities to trust for the store, PEM, beside the system's.")
    allow_http: bool = setting(
        False, "Allow plain text outside loopback. What is stored can then be read on the way."
    )


def judge_objects(objects: ObjectsSection, report: ConfigReport) -> None:
    url, plain = "objects.url", ("http", "https")
    of_s3 = ("endpoint", "region", "access_key_file", "secret_key_file", "ca")
    given = [name for name in of_s3 if getattr(objects, name) is not None]
    if objects.url is None or not objects.url.is_s3:
        text = "is for s3://" if objects.url else "needs objects.url too"
        for name in given:
            report.problem(f"objects.{name}", text, url)
        return
    outside = plain if objects.allow_http else ("https",)
    check_url("objects.endpoint", objects.endpoint, report, outside=outside)
    if objects.endpoint is None and objects.region is None:
        report.problem(url, "needs objects.endpoint, or objects.region for AWS", "objects.endpoint")
    if objects.region is not None and not _REGION.fullmatch(objects.region):
        report.problem("objects.region", f"{objects.region[:60]!r} is no region")
    if objects.allow_http and objects.endpoint and objects.endpoint.startswith("http://"):
        report.warning("objects.allow_http", "what is stored can be read on its way")
    for name in ("access_key_file", "secret_key_file"):
        path, file = f"objects.{name}", getattr(objects, name)
        if file is None:
            report.problem(url, f"needs {path} too", path)
        elif check_file(path, file, report, secret=True) and not file.read_bytes().strip():
            report.problem(path, f"{file} is empty")
    check_authority("objects.ca", objects.ca, report)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySection:
    tsdb_endpoint: str | None = setting(
        None,
        "The metric store, as a URL: VictoriaMetrics, or a Prometheus that takes remote write. "
        "Not set: nothing measured is kept, and only what runs now can be shown.",
    )
    tsdb_username: str | None = setting(None, "As whom the store is asked, with a password.")
    tsdb_password_file: Path | None = setting(
        None, "File with that password. Read again each time."
    )
    tsdb_bearer_file: Path | None = setting(
        None, "File with a bearer token for the store instead. Read again each time."
    )
    tsdb_ca: Path | None = setting(
        None, "Authorities to trust for the store, PEM, beside the system's."
    )
    mode: Mode = setting(
        Mode.PROD,
        "The mode of an allocation nobody switched: `prod` and `audit` measure every 30 s, "
        "`debug` every second.",
    )
    debug_most: int = setting(
        10,
        "How many allocations may be switched to debug at once, over the whole cluster; 0: none.",
        least=0,
        most=MOST_DEBUGGING,
    )
    nodes_write: bool = setting(
        False,
        "Whether nodes are told whose their jobs are, so that those with `telemetry.remote_write` "
        "write to the metric store themselves. Such a node can put any name on a series: only "
        "where the site trusts its nodes. Sensitive jobs never go that way.",
    )


def judge_telemetry(telemetry: TelemetrySection, report: ConfigReport) -> None:
    endpoint = "telemetry.tsdb_endpoint"
    check_url(endpoint, telemetry.tsdb_endpoint, report, outside=("http", "https"))
    others = ("tsdb_username", "tsdb_password_file", "tsdb_bearer_file", "tsdb_ca")
    if telemetry.tsdb_endpoint is None:
        for name in (each for each in others if getattr(telemetry, each) is not None):
            report.problem(f"telemetry.{name}", f"needs {endpoint} too", endpoint)
    for have, lack in (others[:2], others[1::-1]):
        if getattr(telemetry, have) is not None and getattr(telemetry, lack) is None:
            text = f"needs telemetry.{lack} too"
            report.problem(f"telemetry.{have}", text, f"telemetry.{lack}")
    if telemetry.tsdb_password_file and telemetry.tsdb_bearer_file:
        text = "goes with no password: name one of the two"
        report.problem("telemetry.tsdb_bearer_file", text, "telemetry.tsdb_password_file")
    for name in ("tsdb_password_file", "tsdb_bearer_file"):
        check_file(f"telemetry.{name}", getattr(telemetry, name), report, secret=True)
    secret = telemetry.tsdb_password_file or telemetry.tsdb_bearer_file
    if secret and is_plain_outside(telemetry.tsdb_endpoint):
        report.warning(endpoint, "the store's secret can be read on its way: use https://")
    check_authority("telemetry.tsdb_ca", telemetry.tsdb_ca, report)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsSection:
    mlflow_url: str | None = setting(
        None,
        "The MLflow tracking server in which jobs log their runs. No other address is ever asked "
        "for runs. Not set: jobs are shown without runs.",
    )
    mlflow_username: str | None = setting(None, "As whom MLflow is asked, with a password.")
    mlflow_password_file: Path | None = setting(
        None, "File with that password. Read again each time."
    )
    mlflow_bearer_file: Path | None = setting(
        None, "File with a bearer token for MLflow instead. Read again each time."
    )
    mlflow_ca: Path | None = setting(
        None, "Authorities to trust for MLflow, PEM, beside the system's."
    )
    mlflow_page_url: str | None = setting(
        None, "Where people open MLflow, for links to runs. Not set: at `runs.mlflow_url`."
    )


def judge_runs(runs: RunsSection, report: ConfigReport) -> None:
    url, http = "runs.mlflow_url", ("http", "https")
    check_url(url, runs.mlflow_url, report, outside=http)
    check_url("runs.mlflow_page_url", runs.mlflow_page_url, report, outside=http)
    secrets = ("mlflow_password_file", "mlflow_bearer_file")
    if runs.mlflow_url is None:
        for name in ("mlflow_username", *secrets, "mlflow_ca", "mlflow_page_url"):
            if getattr(runs, name) is not None:
                report.problem(f"runs.{name}", f"needs {url} too", url)
    user, password = "mlflow_username", "mlflow_password_file"
    for have, lack in ((user, password), (password, user)):
        if getattr(runs, have) is not None and getattr(runs, lack) is None:
            report.problem(f"runs.{have}", f"needs runs.{lack} too", f"runs.{lack}")
    if runs.mlflow_password_file and runs.mlflow_bearer_file:
        text = "goes with no password: name one of the two"
        report.problem("runs.mlflow_bearer_file", text, "runs.mlflow_password_file")
    for name in secrets:
        check_file(f"runs.{name}", getattr(runs, name), report, secret=True)
    secret = runs.mlflow_password_file or runs.mlflow_bearer_file
    if secret and is_plain_outside(runs.mlflow_url):
        report.warning(url, "the secret of MLflow can be read on its way: use https://")
    check_authority("runs.mlflow_ca", runs.mlflow_ca, report)
