"""The `sharing` section of lattice-server's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lattice.base.config import ConfigReport
from lattice.base.setting import setting
from lattice.features.sharing.model import ShareTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSection:
    usual_days: float = setting(
        7.0, "How long a share lasts if its owner says nothing.", least=0.01, most=365
    )
    longest_days: float = setting(
        30.0, "The longest an owner may share for at a time.", least=0.01, most=365
    )

    @property
    def terms(self) -> ShareTerms:
        return ShareTerms(timedelta(days=self.usual_days), timedelta(days=self.longest_days))


def judge_sharing(sharing: SharingSection, report: ConfigReport) -> None:
    """Check rules between keys."""
    if sharing.usual_days > sharing.longest_days:
        report.problem(
            "sharing.usual_days",
            "is longer than sharing.longest_days allows",
            "sharing.longest_days",
        )
