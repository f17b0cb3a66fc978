"""The check of the documentation site's links."""

from docs.check_links import find_broken_links


def test_pages_and_sections_that_are_missing_are_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/index.html").write_text('<h2 id="there">x</h2>')
    good = '<a href="a/#there">1</a><a href="https://example.org/x">2</a><a href="#x">3</a><a href="a/?q">4</a>'
    (tmp_path / "index.html").write_text(good)
    assert list(find_broken_links(tmp_path)) == []
    (tmp_path / "index.html").write_text(f'{good}<a href="a/#gone">5</a><img src="no.svg">')
    assert list(find_broken_links(tmp_path)) == ["index.html: a/#gone", "index.html: no.svg"]
