"""`snug plan --html`: one page that needs nothing else, with the numbers of the JSON document."""
import html.parser
import json
import os
import re


class Page(html.parser.HTMLParser):
    """Checks that elements close in order, and keeps the scripts and what refers to other files."""

    VOID = {"meta", "link", "img", "br", "input"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.data, self.refers, self.kind = [], "", [], None

    def handle_starttag(self, tag, attributes):
        self.refers += [v for k, v in attributes if k in ("src", "href", "action", "data")]
        self.kind = dict(attributes).get("type") if tag == "script" else self.kind
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open, self.getpos())
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script" and self.kind == "application/json":
            self.data += data


def page_of(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    assert text.startswith("<!doctype html>")
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text, re.I)
    page = Page()
    page.feed(text)
    page.close()
    assert not page.open and not page.refers, (page.open, page.refers)
    return text, json.loads(page.data)


def test_page_has_the_numbers(snug):
    path = os.path.join(snug.dir, "bill.html")
    graph = os.path.join(snug.root, "examples/mlp/graph.json")
    doc = snug.json("plan", graph, "--timeline", "--html", path).doc
    text, plan = page_of(path)
    for key in ("peak_bytes", "lower_bound_bytes", "by_category", "by_node", "persistent_bytes", "savings", "facts",
                "peak_program", "peak_operator", "persistent_by_category", "host"):
        assert plan[key] == doc[key], key
    assert doc["html"] == path and "map" not in doc["programs"][0]
    for inside, outside in zip(plan["programs"], doc["programs"], strict=True):
        drawn = inside.pop("map")
        assert inside == outside
        n, total = inside["operators"], inside["timeline"]
        assert len(drawn["operators"]) == len(total) == n and max(total) <= inside["peak_bytes"]
        for k in range(n):  # the categories, and the buffers of the map, add up to the line
            assert sum(v[k] for v in inside["timeline_by_category"].values()) == total[k]
            live = [b for b in drawn["buffers"] if b[2] <= k <= b[3]]
            assert sum(b[1] for b in live) + plan["persistent_bytes"] == total[k]
            live.sort()
            assert all(a[0] + a[1] <= b[0] for a, b in zip(live, live[1:])), "buffers overlap in the map"
        assert max(b[0] + b[1] for b in drawn["buffers"]) == inside["peak_bytes"]
    peak = next(p for p in plan["programs"] if p["name"] == plan["peak_program"])
    assert peak["timeline"][plan["peak_operator_index"]] == max(peak["timeline"])
    assert "prefers-color-scheme" in text


def test_page_over_budget_and_names(snug):
    """Above the budget the page is written all the same, with the advice; names cannot leave the script."""
    path = os.path.join(snug.dir, "bill.html")
    with open(os.path.join(snug.root, "examples/mlp/graph.json")) as f:
        text = f.read()
    graph = os.path.join(snug.dir, "</script><b>&.json".replace("/", ""))
    with open(graph, "w") as f:
        f.write(text)
    r = snug.json("plan", graph, "--memory-gib", "0.001", "--html", path)
    assert r.rc == 3, r
    _, plan = page_of(path)
    assert plan["title"] == graph and "batch_size" in plan["advice"]


def test_page_cannot_be_written(snug):
    r = snug.json("plan", os.path.join(snug.root, "examples/mlp/graph.json"), "--html", os.path.join(snug.dir, "no/x.html"))
    assert r.rc == 1 and r.doc["error"]["code"] in ("io", "not_found"), r
