"""The checks of certificates: those that people see, and the cluster's own authority. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from lattice.base.moment import age
from lattice.features.doctor.model import Check, Topic
from lattice.features.doctor.service.facts import CertificateFacts
from lattice.features.doctor.service.measured import Inspected

_DAY_S = 86400.0
_SOON_S, _LATE_S = 14 * _DAY_S, _DAY_S
_AUTHORITY_SOON_S, _AUTHORITY_LATE_S = 180 * _DAY_S, 7 * _DAY_S

EXPIRY = Topic("certificates.expiry", "the certificate of the listeners is valid")
NAMES = Topic("certificates.names", "it has the names that clients use")
CHAIN = Topic("certificates.chain", "its chain is complete")
AUTHORITY = Topic("certificates.authority", "the cluster's authority is valid")

_RENEW = "Put a renewed certificate into api.tls_cert; the server reads it without a restart."


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificatesFacts:
    people: Inspected[CertificateFacts]
    people_names: tuple[str, ...]
    authority: Inspected[CertificateFacts]
    now: datetime


def certificate_checks(facts: CertificatesFacts) -> Iterator[Check]:
    yield _expiry(EXPIRY, facts.people, facts.now, (_SOON_S, _LATE_S), _RENEW)
    yield names(facts)
    yield chain(facts.people)
    limits = (_AUTHORITY_SOON_S, _AUTHORITY_LATE_S)
    remedy = (
        "Make its successor: lattice-server --next-identity DIR, then as the page on agents says."
    )
    yield _expiry(AUTHORITY, facts.authority, facts.now, limits, remedy)


def _expiry(
    topic: Topic,
    found: Inspected[CertificateFacts],
    now: datetime,
    limits_s: tuple[float, float],
    remedy: str,
) -> Check:
    if found.off:
        return topic.off(found.off)
    if found.value is None:
        return topic.unknown(found.reason)
    left_s = (found.value.expires - now).total_seconds()
    soon_s, late_s = limits_s
    day = f"{found.value.expires:%Y-%m-%d %H:%M} UTC"
    if left_s <= 0:
        return topic.failed(f"expired {age(-left_s)} ago, on {day}", remedy)
    evidence = f"valid for {age(left_s)}, until {day}"
    if left_s < late_s:
        return topic.failed(evidence, remedy)
    return topic.warning(evidence, remedy) if left_s < soon_s else topic.ok(evidence)


def names(facts: CertificatesFacts) -> Check:
    found = facts.people
    if found.off:
        return NAMES.off(found.off)
    if found.value is None:
        return NAMES.unknown(found.reason)
    if not facts.people_names:
        return NAMES.off("no name is advertised: api.agent_advertise is not set")
    missing = [each for each in facts.people_names if not _is_named(each, found.value.names)]
    if missing:
        return NAMES.failed(
            f"it lacks {', '.join(missing)}; it has {', '.join(found.value.names) or 'no name'}",
            "Have a certificate made with these names, and put it into api.tls_cert.",
        )
    return NAMES.ok(", ".join(facts.people_names))


def _is_named(name: str, there: tuple[str, ...]) -> bool:
    try:
        address = str(ipaddress.ip_address(name))
    except ValueError:
        wanted = name.lower().rstrip(".")
        parent = wanted.partition(".")[2]
        known = {each.lower().rstrip(".") for each in there}
        return wanted in known or (bool(parent) and f"*.{parent}" in known)
    return address in there


def chain(found: Inspected[CertificateFacts]) -> Check:
    if found.off:
        return CHAIN.off(found.off)
    if found.value is None:
        return CHAIN.unknown(found.reason)
    if found.value.fault:
        return CHAIN.warning(
            found.value.fault,
            "Append the authorities between the certificate and its root to api.tls_cert.",
        )
    links = found.value.links
    return CHAIN.ok(f"{links} certificate{'s' if links > 1 else ''}, each signed by the next")
