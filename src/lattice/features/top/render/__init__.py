"""An answer as text: tables for people, CSV for spreadsheets. Pure."""
