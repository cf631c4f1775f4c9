"""Accounts and associations: they have the same format in every schema version so far."""

from __future__ import annotations

import msgspec

from lattice.adapters.slurm.schema import AccountRow, AssociationRow, Raw, fields


class _Named(msgspec.Struct):
    name: str | None = None


class _Account(msgspec.Struct):
    name: str | None = None
    coordinators: list[_Named] | None = None


class _Association(msgspec.Struct):
    account: str | None = None
    cluster: str | None = None
    user: str | None = None
    parent_account: str | None = None


_ACCOUNTS = msgspec.json.Decoder(_Account)
_ASSOCIATIONS = msgspec.json.Decoder(_Association)


class PeopleSchema:
    """The part of a schema that has not changed."""

    def account(self, raw: Raw) -> AccountRow | None:
        """One account."""
        account = fields.record(raw, _ACCOUNTS)
        if account is None or not account.name:
            return None
        names = (each.name for each in account.coordinators or ())
        return AccountRow(account.name, frozenset(name for name in names if name))

    def association(self, raw: Raw) -> AssociationRow | None:
        """One association."""
        row = fields.record(raw, _ASSOCIATIONS)
        if row is None or not row.account or not row.cluster:
            return None
        return AssociationRow(row.cluster, row.account, row.user or "", row.parent_account or "")
