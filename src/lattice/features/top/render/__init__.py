"""A look as text: tables for people, lines for spreadsheets. Pure; knows no terminal."""
