"""Black-box tests of exact replay: what the model generated comes back as a message of the next request and becomes
the very ids that it was generated as.

usage: test_turns.py PATH_OF_weir [unittest arguments]

The null column answers with ids of the test's choice, so they can spell an answer in ways that no encoder would.
"""
import base64
import json
import os
import random
import sys
import unittest

import test_api
from test_api import (ANSWER, ANSWER_END, END, HELLO, MODEL, THINK_END, TOOLS, TOOLS_END, Server, call, encode, post,
                      stream, tool)

CHAT = "/v1/chat/completions"
MARKERS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")


def vocabulary():
    pieces = {}
    with open(os.path.join(MODEL, "tiktoken.model"), "rb") as f:
        for line in f.read().splitlines():
            piece, rank = line.split()
            pieces[base64.b64decode(piece)] = int(rank)
    return pieces


PIECES = vocabulary()
LONGEST = max(map(len, PIECES))


def spelled(rng, text):
    """Ids of the text, cut anywhere; markers are their own ids."""
    ids, data = [], text.encode()
    marker_ids = {m.encode(): encode(m)[0] for m in MARKERS}
    while data:
        marker = next((m for m in marker_ids if data.startswith(m)), None)
        if marker:
            ids.append(marker_ids[marker])
            data = data[len(marker):]
            continue
        end = min((data.find(m) for m in marker_ids if m in data), default=len(data))
        lengths = [n for n in range(1, min(end, LONGEST) + 1) if data[:n] in PIECES]
        n = rng.choice(lengths)
        ids.append(PIECES[data[:n]])
        data = data[n:]
    return ids


WORDS = ["the", " river", "running", " 2026", "café", "龍が", " \U0001F600", "\n\n", "  ", "don't", "{\"a\": 1}", "\t",
         "&quot;", "\"", "<|open|", "x" * 40, "1234567", "Ωμέγα", "e\u0301"]


def words(rng, most):
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(most + 1)))


def ask(ids, messages, headers=None, **fields):
    body = {"messages": messages, "weir_output_ids": ids, "max_tokens": len(ids) + 8, "return_token_ids": True,
            **fields}
    status, reply = post(CHAT, body, headers=headers)
    assert status == 200, reply
    for choice in reply["choices"]:
        assert choice["token_ids"] == ids
        assert choice["finish_reason"] in ("stop", "tool_calls"), choice
    return reply


def prompt_of(messages, headers=None, **fields):
    status, reply = post(CHAT + "/render", {"messages": messages, **fields}, headers=headers)
    assert status == 200, reply
    return reply["prompt_token_ids"]


def joined(events):
    """The message as a client puts it together from a stream's deltas."""
    message = {"role": "assistant", "content": "", "tool_calls": []}
    for delta in (c["delta"] for e in events for c in e["choices"]):
        for key in ("content", "reasoning_content"):
            if delta.get(key):
                message[key] = message.get(key, "") + delta[key]
        for t in delta.get("tool_calls", []):
            if "id" in t:
                message["tool_calls"].append({"id": t["id"], "type": "function", "function": dict(t["function"])})
            else:
                message["tool_calls"][t["index"]]["function"]["arguments"] += t["function"]["arguments"]
    return message


def random_turn(rng, thinking, tools):
    text = (words(rng, 12) + THINK_END + ANSWER if thinking else "") + words(rng, 12) + ANSWER_END
    if tools and rng.random() < 0.6:
        calls = [call("find", i + 1, **{f"k{k}": rng.choice([words(rng, 5), rng.randrange(10**6)])
                                       for k in range(rng.randrange(4))}) for i in range(rng.randrange(1, 4))]
        text += TOOLS + "".join(calls) + TOOLS_END
    return text + END


def echo(rng, message):
    """One of the ways in which clients send a message back."""
    message = dict(message)
    if rng.random() < 0.3 and "reasoning_content" in message:
        message["reasoning"] = message.pop("reasoning_content")
    if not message.get("content") and (message.get("tool_calls") or message.get("reasoning_content")):
        way = rng.randrange(3)
        message["content"] = None if way == 0 else ""
        if way == 2:
            del message["content"]
    elif message.get("content") and rng.random() < 0.3:
        message["content"] = [{"type": "text", "text": message["content"]}]
    if not message.get("tool_calls") and rng.random() < 0.5:
        message["tool_calls"] = rng.choice([None, []])
    if message.get("tool_calls") and rng.random() < 0.4:
        message["tool_calls"] = [
            {**t, "function": {**t["function"], "arguments": json.dumps(json.loads(t["function"]["arguments"]))}}
            for t in message["tool_calls"]]
    message.update(rng.choice([{}, {"annotations": [], "refusal": None}, {"x_client": {"n": 1}}]))
    return message


class Case(unittest.TestCase):
    def starts(self, longer, start, *more):
        self.assertEqual(longer[:len(start)], start, *more)

    def counters(self):
        return {n: test_api.SERVER.metric("weir_turn_replay_" + n)
                for n in ("entries", "bytes", "limit_bytes", "hits_total", "misses_total", "evictions_total")}


class Replay(Case):
    def test_turn_2_starts_with_the_prompt_and_the_ids_of_turn_1(self):
        seed = int(os.environ.get("WEIR_TEST_SEED", "20261"))
        differing = 0
        for number in range(25):
            rng = random.Random(seed + number)
            thinking, tools = rng.random() < 0.6, rng.random() < 0.6
            fields = {"reasoning_effort": rng.choice(["low", "high"]) if thinking else "none"}
            if tools:
                fields["tools"] = [tool("find")]
            messages = [{"role": "user", "content": words(rng, 9)}]
            so_far = None
            for _ in range(rng.randrange(2, 5)):
                text = random_turn(rng, thinking, tools)
                ids = spelled(rng, text)
                prompt = prompt_of(messages, **fields)
                if so_far:
                    self.starts(prompt, so_far, f"seed {seed + number}")
                if rng.random() < 0.5:
                    message = ask(ids, messages, **fields)["choices"][0]["message"]
                else:
                    message = joined(stream(CHAT, {"messages": messages, "weir_output_ids": ids,
                                                   "max_tokens": len(ids) + 8, **fields}))
                so_far = prompt + ids
                differing += ids != encode(text)
                messages.append(echo(rng, message))
                for t in message.get("tool_calls", []):
                    messages.append({"role": "tool", "tool_call_id": t["id"], "content": words(rng, 4)})
                if not message.get("tool_calls"):
                    messages.append({"role": "user", "content": words(rng, 6)})
            self.starts(prompt_of(messages, **fields), so_far, f"seed {seed + number}")
        self.assertGreater(differing, 20)

    def one_turn(self, text="Because." + THINK_END + ANSWER + "A river runs." + ANSWER_END + END, **fields):
        """Messages whose second one is an answer in ids of another cut, and the ids up to its end."""
        rng = random.Random(self.id())
        ids = spelled(rng, text)
        while ids == encode(text):
            ids = spelled(rng, text)
        user = [{"role": "user", "content": f"Tell me, {self.id()}, {fields}"}]
        reply = ask(ids, user, **fields)
        answer = reply["choices"][0]["message"]
        return user + [answer, {"role": "user", "content": "And?"}], reply["prompt_token_ids"] + ids

    def not_replayed(self, messages, ids, **fields):
        prompt = prompt_of(messages, **fields)
        self.assertNotEqual(prompt[:len(ids)], ids)

    def test_an_edited_message_is_encoded_anew(self):
        messages, ids = self.one_turn()
        self.starts(prompt_of(messages), ids)
        for edit in ({"content": "A river runs!"}, {"content": "A river runs. "}, {"reasoning_content": "Because"},
                     {"reasoning_content": ""}, {"reasoning_content": None}, {"name": "somebody"},
                     {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}):
            edited = [messages[0], {**messages[1], **edit}, messages[2]]
            self.not_replayed(edited, ids)
        self.starts(prompt_of(messages), ids)

    def test_an_edited_call_is_encoded_anew(self):
        text = THINK_END + ANSWER + ANSWER_END + TOOLS + call("find", 1, a="xy", b=1) + TOOLS_END + END
        messages, ids = self.one_turn(text=text, tools=[tool("find")])
        fields = {"tools": [tool("find")]}
        answer = messages[1]
        result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "7"}
        messages[2] = result
        self.starts(prompt_of(messages, **fields), ids)
        for name, arguments in (("find", '{"a":"xy","b":1.0}'), ("find", '{"a":"xy"}'), ("found", '{"a":"xy","b":1}'),
                                ("find", '{"b":1,"a":"xy"}'), ("find", '{"a":"xy","b":"1"}')):
            changed = {**answer["tool_calls"][0], "function": {"name": name, "arguments": arguments}}
            self.not_replayed([messages[0], {**answer, "tool_calls": [changed]}, result], ids, **fields)
        # A client may have read and written the arguments: the prompt shows values, not their JSON.
        dumped = {**answer["tool_calls"][0], "function": {"name": "find", "arguments": '{"a": "x\\u0079", "b": 1}'}}
        self.starts(prompt_of([messages[0], {**answer, "tool_calls": [dumped]}, result], **fields), ids)
        # K3 writes no ids of calls: those that a client makes up change nothing.
        renamed = {**answer["tool_calls"][0], "id": "mine"}
        self.starts(prompt_of([messages[0], {**answer, "tool_calls": [renamed]}, {**result, "tool_call_id": "mine"}],
                              **fields), ids)

    def test_another_prefix_is_encoded_anew(self):
        messages, ids = self.one_turn()
        before = [{"role": "system", "content": "Be brief."}] + messages
        self.not_replayed(before, ids)
        at = len(prompt_of(before[:2])) - len(prompt_of(messages[:1]))
        self.assertNotEqual(prompt_of(before)[at:at + len(ids)], ids)
        self.not_replayed([{"role": "user", "content": "Tell me"}] + messages[1:], ids)

    def test_another_salt_is_encoded_anew(self):
        for mine in (None, "mine"):
            salt = {"cache_salt": mine} if mine else {}
            messages, ids = self.one_turn(**salt)
            self.starts(prompt_of(messages, **salt), ids)
            for other in ("minf", "other", None if mine else "mine"):
                self.not_replayed(messages, ids, **({"cache_salt": other} if other else {}))

    def test_every_choice_is_recorded(self):
        messages = [{"role": "user", "content": "Three, please"}]
        text = "One" + THINK_END + ANSWER + "two three" + ANSWER_END + END
        ids = spelled(random.Random(5), text)
        before = self.counters()["entries"]
        reply = ask(ids, messages, n=3)
        # Equal messages are one entry; the last one stands.
        self.assertEqual(self.counters()["entries"], before + 1)
        for choice in reply["choices"]:
            self.starts(prompt_of(messages + [choice["message"], HELLO[0]]), reply["prompt_token_ids"] + ids)

    def test_only_turns_that_the_model_ended_are_recorded(self):
        text = "Because" + THINK_END + ANSWER + "A river runs" + ANSWER_END + END
        ids = spelled(random.Random(3), text)
        before = self.counters()["entries"]
        for fields in ({"max_tokens": len(ids) - 1}, {"stop": [" runs"]}, {"stop": ["runs"], "stream": True},
                       {"stop": ["runs", "runs away"]},
                       {"include_reasoning": False}, {"ignore_eos": True}):
            body = {"messages": HELLO, "weir_output_ids": ids, "max_tokens": len(ids), **fields}
            stream(CHAT, body) if "stream" in fields else post(CHAT, body)
            self.assertEqual(self.counters()["entries"], before, fields)
        ask(ids, HELLO, stop=["nothing like it"])
        self.assertEqual(self.counters()["entries"], before + 1)

    def test_ids_that_say_more_than_the_message_are_not_recorded(self):
        """The parser drops what these hold besides; the next prompt must not have it."""
        answer = ANSWER + "Hi" + ANSWER_END
        before = self.counters()["entries"]
        for text in (THINK_END + answer + "Obey me" + END, THINK_END + "Obey me" + answer + END,
                     THINK_END + answer.replace("response", 'response say="Obey me"', 1) + END,
                     THINK_END + answer + TOOLS + "Obey me" + TOOLS_END + END,
                     THINK_END + ANSWER + ANSWER_END * 3 + answer + END,
                     THINK_END + answer + TOOLS + call("find", 1, a=1) + TOOLS_END + END,  # tools are not declared
                     THINK_END + "<|open|>secret<|sep|>" + answer + END,
                     "Hm" + THINK_END + ANSWER + "Hi<|end_of_msg|>",
                     " " * 100 + THINK_END + answer + END):
            ids = encode(text)
            reply = ask(ids, HELLO)
            self.assertEqual(self.counters()["entries"], before, text)
            answered = prompt_of(HELLO + [reply["choices"][0]["message"], HELLO[0]])
            self.assertNotEqual(answered[len(reply["prompt_token_ids"]):][:len(ids)], ids)

    def test_what_the_renderer_would_write_otherwise_is_replayed(self):
        for text, fields in (("\n" + THINK_END + ANSWER + "Blank thought" + ANSWER_END + END, {}),
                             (THINK_END + TOOLS + call("find", 1, a="no response channel") + TOOLS_END + END,
                              {"tools": [tool("find")]}),
                             (THINK_END + ANSWER + ANSWER_END + TOOLS +
                              call("find", 1, a=7).replace(">7<", "> 7 <") + TOOLS_END + END,
                              {"tools": [tool("find")]})):
            user = [{"role": "user", "content": text[:80]}]
            ids = encode(text)
            reply = ask(ids, user, **fields)
            message = reply["choices"][0]["message"]
            results = [{"role": "tool", "tool_call_id": t["id"], "content": "."} for t in message.get("tool_calls", [])]
            self.starts(prompt_of(user + [message] + results, **fields), reply["prompt_token_ids"] + ids, text)

    def test_a_safety_stop_is_replayed_as_the_end_of_turn(self):
        text = "Hm" + THINK_END + ANSWER + "Hi there" + ANSWER_END + "<|close|>message<|sep|>"
        ids = spelled(random.Random(8), text)
        user = [{"role": "user", "content": "safely"}]
        reply = ask(ids + encode("[EOS]"), user)
        self.starts(prompt_of(user + [reply["choices"][0]["message"], HELLO[0]]),
                    reply["prompt_token_ids"] + ids + encode("<|end_of_msg|>"))

    def test_broken_characters_are_replayed(self):
        ids = encode("Hm" + THINK_END + ANSWER) + [PIECES[b"\xE9"], PIECES[b"a"]] + encode(ANSWER_END + END)
        user = [{"role": "user", "content": "broken"}]
        reply = ask(ids, user)
        self.assertEqual(reply["choices"][0]["message"]["content"], "\uFFFDa")
        messages = user + [reply["choices"][0]["message"], HELLO[0]]
        self.starts(prompt_of(messages), reply["prompt_token_ids"] + ids)
        shown = post(CHAT + "/render", {"messages": messages})[1]["prompt"]
        self.assertIn("<|open|>response<|sep|>\uFFFDa<|close|>response<|sep|>", shown)

    def test_all_endpoints_agree_on_the_prompt(self):
        messages, ids = self.one_turn()
        rendered = post(CHAT + "/render", {"messages": messages})[1]
        self.starts(rendered["prompt_token_ids"], ids)
        self.assertIn("Because.<|close|>think<|sep|><|open|>response<|sep|>A river runs.<|close|>", rendered["prompt"])
        self.assertEqual(post("/tokenize", {"messages": messages})[1]["tokens"], rendered["prompt_token_ids"])
        reply = post(CHAT, {"messages": messages, "max_tokens": 1, "return_token_ids": True})[1]
        self.assertEqual(reply["prompt_token_ids"], rendered["prompt_token_ids"])
        # A body above 64 KiB is rendered on a worker.
        status, reply = post(CHAT, {"messages": messages, "max_tokens": 1, "return_token_ids": True,
                                    "metadata": {"x": "y" * 100000}})
        self.assertEqual((status, reply.get("prompt_token_ids")), (200, rendered["prompt_token_ids"]))

    def test_metrics_count_hits_and_misses(self):
        before = self.counters()
        messages, ids = self.one_turn()
        recorded = self.counters()
        self.assertEqual(recorded["entries"], before["entries"] + 1)
        self.assertGreater(recorded["bytes"], before["bytes"] + 4 * 10)
        prompt_of(messages)
        prompt_of([messages[0], {**messages[1], "content": "no"}, messages[2]])
        after = self.counters()
        self.assertEqual(after["hits_total"], recorded["hits_total"] + 1)
        self.assertEqual(after["misses_total"], recorded["misses_total"] + 1)
        self.assertEqual(after["limit_bytes"], 64 << 20)


class WithServer(Case):
    options = ()
    compute = "null"

    @classmethod
    def setUpClass(cls):
        cls.before, test_api.SERVER = test_api.SERVER, Server(*cls.options, compute=cls.compute)

    @classmethod
    def tearDownClass(cls):
        code = test_api.SERVER.stop()
        test_api.SERVER.log.close()
        test_api.SERVER = cls.before
        assert code == 0, code


class Model(WithServer):
    """The ids of a real model: tiny-k3 thinks, answers, and talks on with its own turns as history."""
    compute = "fast"

    def test_conversations_with_a_model_are_replayed(self):
        tools = [tool("find", {"type": "object", "properties": {"what": {"type": "string"}}})]
        kept = replayed = 0
        for seed in range(6):
            fields = {"tools": tools} if seed % 2 else {}
            if seed % 3 == 2:
                fields["reasoning_effort"] = "none"
            messages = [{"role": "user", "content": ("Who are you?", "What is 2 + 3?", "Name a colour.")[seed % 3]}]
            for _ in range(3):
                entries = self.counters()["entries"]
                status, reply = post(CHAT, {"messages": messages, "max_tokens": 150, "seed": seed, "temperature": 1.1,
                                            "return_token_ids": True, **fields})
                self.assertEqual(status, 200, reply)
                choice = reply["choices"][0]
                kept += self.counters()["entries"] - entries
                messages += [choice["message"], {"role": "user", "content": "And then?"}]
                whole = reply["prompt_token_ids"] + choice["token_ids"]
                replayed += prompt_of(messages, **fields)[:len(whole)] == whole
        # Sampled as warmly as here the small model leaves its format now and then.
        self.assertGreater(kept, 8)
        self.assertGreaterEqual(replayed, kept)


class Keys(WithServer):
    options = ("--api-key", "one", "--api-key", "two", "--salt-by-key", "--open-metrics")

    def test_turns_of_another_key_are_not_replayed(self):
        one, two = ({"Authorization": "Bearer " + k} for k in ("one", "two"))
        text = THINK_END + ANSWER + "Mine alone" + ANSWER_END + END
        status, reply = post("/tokenize", {"prompt": text, "parse_special": True}, headers=one)
        ids = reply["tokens"]
        data = b"Mine alone"
        start = next(i for i in range(len(ids)) if post(
            "/detokenize", {"tokens": ids[i:]}, headers=one)[1]["prompt"].startswith("Mine"))
        end = next(i for i in range(len(ids), 0, -1) if post(
            "/detokenize", {"tokens": ids[:i]}, headers=one)[1]["prompt"].endswith("alone"))
        ids = ids[:start] + [PIECES[bytes([b])] for b in data] + ids[end:]
        reply = ask(ids, HELLO, headers=one)
        messages = HELLO + [reply["choices"][0]["message"], HELLO[0]]
        whole = reply["prompt_token_ids"] + ids
        self.starts(prompt_of(messages, headers=one), whole)
        self.assertNotEqual(prompt_of(messages, headers=two)[:len(whole)], whole)


class Small(WithServer):
    options = ("--turn-replay-bytes", "4096")

    def test_the_store_is_bounded(self):
        for i in range(60):
            ask(encode(THINK_END + ANSWER + f"Number {i}" + ANSWER_END + END), HELLO)
        now = self.counters()
        self.assertLessEqual(now["bytes"], 4096)
        self.assertGreater(now["entries"], 5)
        self.assertEqual(now["entries"] + now["evictions_total"], 60)


class Off(WithServer):
    options = ("--turn-replay-bytes", "0")

    def test_nothing_is_kept(self):
        text = THINK_END + ANSWER + "A river" + ANSWER_END + END
        ids = spelled(random.Random(1), text)
        reply = ask(ids, HELLO)
        whole = reply["prompt_token_ids"] + ids
        self.assertNotEqual(prompt_of(HELLO + [reply["choices"][0]["message"], HELLO[0]])[:len(whole)], whole)
        with self.assertRaises(AssertionError):
            test_api.SERVER.metric("weir_turn_replay_entries")


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
