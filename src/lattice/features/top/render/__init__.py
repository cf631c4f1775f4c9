"""A look as text: tables for people, CSV for spreadsheets. Pure."""
