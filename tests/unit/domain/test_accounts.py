from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.accounts import Account, AccountTree

TREE = AccountTree.of(
    [
        Account("root"),
        Account("physics", "root"),
        Account("research", "physics", frozenset({"carol"})),
        Account("lasers", "research"),
        Account("biology", "", frozenset({"dave"})),
        Account("orphan", "gone"),
    ],
    {"alice": ["lasers", "biology"], "bob": ["orphan"]},
)


def test_the_tenant_is_the_top_account_below_root() -> None:
    assert TREE.tenant_of("lasers") == "physics"
    assert TREE.tenant_of("physics") == "physics"
    assert TREE.tenant_of("biology") == "biology"


def test_an_unknown_account_or_a_torn_line_has_no_tenant() -> None:
    assert TREE.tenant_of("nobody") == ""
    assert TREE.tenant_of("orphan") == ""
    assert TREE.tenant_of("") == ""
    assert TREE.tenant_of("root") == ""


def test_coordinators_reach_down_and_not_up() -> None:
    assert TREE.coordinated_by("carol") == {"research", "lasers"}
    assert TREE.coordinated_by("dave") == {"biology"}
    assert TREE.coordinated_by("alice") == frozenset()
    assert TREE.coordinated_by("") == frozenset()


def test_below_is_the_account_and_what_is_under_it() -> None:
    assert TREE.below("physics") == {"physics", "research", "lasers"}
    assert TREE.below("nobody") == frozenset()


def test_the_tenants_of_a_user_are_those_of_the_accounts() -> None:
    assert TREE.tenants_of("alice") == {"physics", "biology"}
    assert TREE.tenants_of("bob") == frozenset()
    assert TREE.tenants_of("stranger") == frozenset()


NAMES = st.sampled_from(["a", "b", "c", "d", "root", ""])


@given(st.lists(st.builds(Account, NAMES, NAMES, st.frozensets(st.sampled_from(["u", "v"])))))
def test_any_tree_even_a_looped_one_gives_each_account_at_most_one_tenant(
    accounts: list[Account],
) -> None:
    tree = AccountTree.of(accounts)
    for name in tree.accounts:
        tenant = tree.tenant_of(name)
        assert tenant == "" or (
            tree.accounts[tenant].parent in ("", "root") and name in tree.below(tenant)
        )
    for user in ("u", "v"):
        assert tree.coordinated_by(user) <= set(tree.accounts)
