"""Signs a person of the lab in without a browser: walks the provider's pages over HTTP.

    python -m lab.signin --user alice URL     finish an authorization or device URL as alice

An authorization URL is followed to the end, which is the program that waits on the loopback
callback; its answer is printed. A device URL ends on the provider's own last page. Standard
library only, so that it starts quickly; runs inside the lab's control network.
"""

from __future__ import annotations

import argparse
import html
import http.client
import http.cookiejar
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

_FORM = re.compile(r"<form\b[^>]*>.*?</form>", re.DOTALL | re.IGNORECASE)
_INPUT = re.compile(r"<input\b[^>]*>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r'([a-z-]+)="([^"]*)"', re.IGNORECASE)
_MOST_PAGES = 20
_TIMEOUT_S = 15.0


class SignInError(Exception):
    """The provider did not let the person through; the message is its page."""


@dataclass(frozen=True, slots=True)
class Page:
    """Where the walk stands: an address, and what it answered."""

    url: str
    status: int
    text: str

    @property
    def words(self) -> str:
        """The page as a reader sees it."""
        visible = re.sub(r"<(style|script|title)\b.*?</\1>", " ", self.text, flags=re.DOTALL)
        return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", visible).split()))


class Browser:
    """Follows redirects, keeps cookies, fills forms in. One person, one sign-in."""

    def __init__(self, user: str, *, refuse: bool = False) -> None:
        self._user = user
        self._refuse = refuse
        self._refused = False
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()),
            _NoRedirect(),
        )

    def walk(self, url: str, *, stop_at: str | None = None) -> Page:
        """Go on from page to page until one has no form; or stop, unvisited, at an address."""
        form: dict[str, str] | None = None
        for _ in range(_MOST_PAGES):
            if stop_at is not None and url.startswith(stop_at):
                return Page(url, 0, "")
            page, location = self._fetch(url, form)
            if location is not None:
                url, form = urllib.parse.urljoin(url, location), None
                continue
            if page.status >= 400:
                raise SignInError(f"{page.url} answered {page.status}: {page.words}")
            found = self._fill_in(page)
            if found is None:
                return page
            url, form = found
        raise SignInError(f"no end after {_MOST_PAGES} pages, now at {url}")

    def _fetch(self, url: str, form: dict[str, str] | None) -> tuple[Page, str | None]:
        data = urllib.parse.urlencode(form).encode() if form is not None else None
        try:
            with self._opener.open(urllib.request.Request(url, data), timeout=_TIMEOUT_S) as got:
                return Page(url, got.status, got.read().decode(errors="replace")), None
        except urllib.error.HTTPError as other:
            with other:
                text = other.read().decode(errors="replace")
                location = other.headers.get("location") if 300 <= other.code < 400 else None
                return Page(url, other.code, text), location

    def _fill_in(self, page: Page) -> tuple[str, dict[str, str]] | None:
        """The address and fields of the page's first form, as this person sends it."""
        found = _FORM.search(page.text)
        if found is None:
            return None
        action = _attributes(found[0].split(">", 1)[0]).get("action", page.url)
        inputs = [_attributes(tag) for tag in _INPUT.findall(found[0])]
        fields = {tag["name"]: tag.get("value", "") for tag in inputs if "name" in tag}
        if "login" in fields:
            fields["login"], fields["password"] = self._user, "any"
        if self._refuse:
            # The provider's own page for a device calls the other button by another name, and
            # asks for a code again once it was pressed.
            if "user_code" in fields and self._refused:
                return None
            for button, value in (("refuse", "1"), ("abort", "yes")):
                if f'name="{button}"' in page.text:
                    fields[button] = value
                    self._refused = True
        return urllib.parse.urljoin(page.url, action), fields


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects come back as answers, so that a walk can stop before a callback."""

    def redirect_request(self, *_: object) -> None:
        return None


def _attributes(tag: str) -> dict[str, str]:
    return {name.lower(): html.unescape(value) for name, value in _ATTRIBUTE.findall(tag)}


def sign_in(user: str, url: str, *, refuse: bool = False) -> Page:
    """Finish an authorization or device URL as the person; answers the last page."""
    return Browser(user, refuse=refuse).walk(url)


def authorization_code(user: str, url: str, *, refuse: bool = False) -> dict[str, str]:
    """Finish an authorization URL but don't visit its callback: answers what it would be told."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)
    (callback,) = query["redirect_uri"]
    page = Browser(user, refuse=refuse).walk(url, stop_at=callback)
    told = urllib.parse.parse_qs(urllib.parse.urlsplit(page.url).query)
    return {name: values[0] for name, values in told.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.signin", description=__doc__)
    parser.add_argument("--user", required=True, help="who signs in")
    parser.add_argument("--refuse", action="store_true", help="refuse instead of agreeing")
    parser.add_argument("url", help="authorization URL, or device verification URL with its code")
    asked = parser.parse_args(arguments)
    try:
        print(sign_in(asked.user, asked.url, refuse=asked.refuse).words)
    except (SignInError, OSError, http.client.HTTPException) as problem:
        print(f"sign-in failed: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
