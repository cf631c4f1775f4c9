from __future__ import annotations

from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters

VIEWS = Vclusters(
    (
        Vcluster("batch", VclusterKind.HPC, "main"),
        Vcluster("urgent", VclusterKind.SERVICE, "main", "high"),
        Vcluster("secret", VclusterKind.SENSITIVE, "vault", "high"),
    )
)


def test_the_view_that_names_the_qos_wins() -> None:
    assert VIEWS.of("main", "high") == VIEWS.views[1]
    assert VIEWS.of("main", "low") == VIEWS.views[0]
    assert VIEWS.of("main", "") == VIEWS.views[0]


def test_a_view_with_a_qos_takes_no_other_and_some_jobs_have_none() -> None:
    assert VIEWS.of("vault", "low") is None
    assert VIEWS.of("vault", "") is None
    assert VIEWS.of("elsewhere", "high") is None


def test_kinds_are_found_by_name() -> None:
    assert VIEWS.kind_of("secret") is VclusterKind.SENSITIVE
    assert VIEWS.kind_of("nothing") is None
    assert VIEWS.kind_of(None) is None
