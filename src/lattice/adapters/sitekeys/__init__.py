"""The site's keys: in a file, or in a token behind PKCS#11."""
