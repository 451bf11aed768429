"""Black-box tests of what /metrics says about the prefix cache: its figures are those that the answers tell.

usage: test_metrics.py PATH_OF_weir [unittest arguments]
"""
import re
import sys
import unittest

import test_api
from test_api import END, Server, encode, post, request
from test_http import wait_for

CHAT = "/v1/chat/completions"
LONG = "The river runs past the mill and the weir holds it back. " * 40


def series():
    """Every series of /metrics, by its line up to the value."""
    status, _, text = request("GET", "/metrics")
    assert status == 200, text
    return {name: float(value) for name, value in re.findall(r"^([^#\s].*) (\S+)$", text.decode(), re.M)}


def by_label(name, label):
    found = {}
    for line, value in series().items():
        if line.startswith(name + "{"):
            key = re.search(rf'[,{{]{label}="([^"]*)"', line)[1]
            found[key] = found.get(key, 0) + value
    return found


def ask(text):
    """Prompt tokens of the request, and how many of them were cached."""
    status, reply = post(CHAT, {"messages": [{"role": "user", "content": text}], "weir_output_ids": encode("yes" + END),
                                "max_tokens": 8})
    assert status == 200, reply
    usage = reply["usage"]
    return usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


class PrefixCache(unittest.TestCase):
    def delta(self, name, label, act):
        before = by_label(name, label)
        result = act()
        after = by_label(name, label)
        self.assertEqual(set(before), set(after), "series come and go")
        return result, {k: after[k] - before[k] for k in after}

    def test_cached_tokens_of_an_answer_are_those_of_the_metrics(self):
        (tokens, cached), moved = self.delta("weir_prompt_tokens_by_source_total", "source", lambda: ask("1 " + LONG))
        self.assertEqual(moved["computed"] + moved["device"], tokens)
        self.assertEqual(moved["device"], cached)
        (tokens, cached), moved = self.delta("weir_prompt_tokens_by_source_total", "source", lambda: ask("1 " + LONG))
        self.assertGreater(cached, 64)
        self.assertEqual(moved["device"], cached)
        self.assertEqual(moved["computed"], tokens - cached)

    def test_sources_sum_to_queries_and_hits(self):
        ask("2 " + LONG)
        ask("2 " + LONG)
        sources = by_label("weir_prompt_tokens_by_source_total", "source")
        self.assertEqual(sum(sources.values()), test_api.SERVER.metric("vllm:prefix_cache_queries_total"))
        self.assertEqual(sum(sources.values()) - sources["computed"], test_api.SERVER.metric("vllm:prefix_cache_hits_total"))
        self.assertLessEqual(test_api.SERVER.metric("weir_stateless_tokens_total"), sources["computed"])

    def test_a_second_prompt_resumes_from_a_state_that_the_first_left(self):
        _, stored = self.delta("weir_checkpoints_stored_total", "reason", lambda: ask("3 " + LONG))
        self.assertGreaterEqual(stored["end-of-prompt"], 1)
        _, resumed = self.delta("weir_checkpoints_resumed_total", "reason", lambda: ask("3 " + LONG))
        self.assertEqual(sum(resumed.values()), 1)

    def test_idle_content_is_cached_and_not_in_use(self):
        ask("4 " + LONG)
        pools = "weir_kv_pages", "weir_state_slots"
        # A step that was under way when the answer ended keeps what it writes until it comes back.
        wait_for(lambda: not any(test_api.SERVER.metric(pool + "_used") for pool in pools), 20)
        for pool in pools:
            used, cached, free, total = (test_api.SERVER.metric(pool + end) for end in ("_used", "_cached", "_free", ""))
            self.assertEqual(used, 0)
            self.assertGreater(cached, 0)
            self.assertEqual(used + cached + free, total)
        self.assertEqual(test_api.SERVER.metric("vllm:kv_cache_usage_perc"), 0)

    def test_a_server_without_tiers_has_no_series_of_them(self):
        names = series()
        self.assertFalse([n for n in names if n.startswith("weir_tier_")])
        self.assertEqual(set(by_label("weir_prompt_tokens_by_source_total", "source")), {"device", "computed"})


class Off(unittest.TestCase):
    def test_without_prefix_caching_all_prompt_tokens_are_computed(self):
        whole, test_api.SERVER = test_api.SERVER, Server("--no-enable-prefix-caching")
        try:
            tokens = [ask("5 " + LONG)[0] for _ in range(2)]
            sources = by_label("weir_prompt_tokens_by_source_total", "source")
            self.assertEqual(sources, {"device": 0, "computed": sum(tokens)})
            self.assertEqual(test_api.SERVER.metric("weir_kv_pages_cached"), 0)
        finally:
            test_api.SERVER.stop()
            test_api.SERVER = whole


def setUpModule():
    test_api.SERVER = Server()


def tearDownModule():
    code = test_api.SERVER.stop()
    if code != 0:
        test_api.SERVER.log.seek(0)
        raise AssertionError(f"exit {code}: " + test_api.SERVER.log.read().decode())


if __name__ == "__main__":
    test_api.WEIR = sys.argv.pop(1)
    unittest.main()
