"""The replay client against weir itself: lengths, cached tokens and sums agree between client and server.

usage: test_live.py PATH_OF_weir MODEL_DIR TRACE [unittest arguments]
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

WEIR, MODEL, TRACE = sys.argv[1:4]
with open(WEIR, "rb") as program:
    SANITIZED = b"__asan_init" in program.read()  # a tenth of the speed: the same paths, shorter prompts
SCALES = ["--length-scale", "0.1" if SANITIZED else "0.2", "--time-scale", "0.001"]


class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([WEIR, "serve", "--model", MODEL, "--port", "0", "--api-key", "k", "--admin-key", "adm"],
                                      stdout=subprocess.PIPE, text=True)
        cls.url = cls.server.stdout.readline().split()[1]
        cls.dir = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait(30)
        cls.server.stdout.close()
        cls.dir.cleanup()

    def bench(self, *args, command="replay", status=0):
        out = os.path.join(self.dir.name, self.id().rsplit(".", 1)[1])
        done = subprocess.run([WEIR, "bench", command, "--url", self.url, "--api-key", "k", "--out", out, "--json", *args],
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        return out, json.loads(done.stdout) if done.stdout else None

    def records(self, out):
        with open(os.path.join(out, "profile_export.jsonl")) as f:
            return [json.loads(line) for line in f]

    def test_lengths_and_sums_are_those_of_the_server(self):
        out, said = self.bench("--random-input-len", "150", "--random-output-len", "12", "--random-range-ratio", "0.4",
                               "--random-prefix-len", "256", "--num-prompts", "12", "--concurrency", "3")
        records = self.records(out)
        self.assertEqual(len(records), 12)
        for r in records:
            self.assertIsNone(r["error"])
            m, w = r["metrics"], r["weir"]
            self.assertEqual(m["input_sequence_length"]["value"], w["input_expected"])
            self.assertEqual(m["output_sequence_length"]["value"], w["output_expected"])
            self.assertEqual((w["input_counted_by"], w["output_counted_by"]), ("usage", "usage"))
        tokens = said["inferencex"]["server_metrics"]["tokens"]
        self.assertEqual(tokens["prompt_total"], sum(r["metrics"]["input_sequence_length"]["value"] for r in records))
        self.assertEqual(tokens["generation_total"], sum(r["metrics"]["output_sequence_length"]["value"] for r in records))
        # All but the first calls, which run side by side, find the common prefix.
        cached = [r["weir"]["cached_tokens"] for r in records]
        self.assertGreaterEqual(sum(c >= 192 for c in cached), 9, cached)
        self.assertEqual(said["inferencex"]["server_metrics"]["adapter"], "weir")
        self.assertEqual([w for w in said["warnings"] if "figures of so short a run" not in w], [])

    def test_sessions_find_their_own_prefixes_and_nobody_elses(self):
        args = ["--trace", TRACE, "--format", "weka", "--concurrency", "2", "--duration", "2" if SANITIZED else "6", *SCALES]
        out, said = self.bench(*args)
        records = self.records(out)
        self.assertFalse([r["error"] for r in records if r["error"]])
        self.assertTrue(any(r["metadata"]["benchmark_phase"] == "warmup" for r in records))
        self.assertTrue(any(r["weir"]["cached_tokens"] > 0 for r in records))
        first = {}
        for r in sorted(records, key=lambda r: r["metadata"]["request_start_ns"]):
            first.setdefault(r["weir"]["play"], r)
        self.assertEqual({r["weir"]["cached_tokens"] for r in first.values()}, {0})
        reasons = " ".join(said["summary"]["metadata"]["submission_invalid_reasons"])
        self.assertIn("time_scale", reasons)
        self.assertIn("length_scale", reasons)
        # The same again, with the same seed, must not live on what the first run left.
        again = self.records(self.bench(*args)[0])
        first = {}
        for r in sorted(again, key=lambda r: r["metadata"]["request_start_ns"]):
            first.setdefault(r["weir"]["play"], r)
        self.assertEqual({r["weir"]["cached_tokens"] for r in first.values()}, {0})

    def test_chat_prompts_of_the_vocabulary_have_one_length(self):
        out, said = self.bench("--random-input-len", "100", "--random-output-len", "5", "--num-prompts", "4", "--endpoint", "chat",
                               "--tokenizer", MODEL)
        lengths = {r["metrics"]["input_sequence_length"]["value"] for r in self.records(out)}
        self.assertEqual(len(lengths), 1, lengths)
        self.assertGreater(lengths.pop(), 100)

    def test_a_sweep_writes_each_point(self):
        out, said = self.bench("--random-input-len", "64", "--random-output-len", "4", "--num-prompts", "8", "--concurrency", "1,4",
                               "--reset-cache", "--admin-key", "adm", command="sweep")
        self.assertEqual([p["concurrency"] for p in said["points"]], [1, 4])
        for c in ("c1", "c4"):
            self.assertEqual(len(self.records(os.path.join(out, c))), 8)
        _, nothing = self.bench("--random-input-len", "64", "--num-prompts", "8", "--reset-cache", command="sweep", status=1)
        self.assertIsNone(nothing)

    def test_an_interrupt_ends_the_files_as_cancelled(self):
        out = os.path.join(self.dir.name, "interrupted")
        p = subprocess.Popen([WEIR, "bench", "replay", "--url", self.url, "--api-key", "k", "--out", out, "--random-input-len", "32",
                              "--random-output-len", "400", "--num-prompts", "1000", "--concurrency", "2"], stdout=subprocess.PIPE)
        time.sleep(2)
        p.send_signal(signal.SIGINT)
        text = p.communicate(timeout=30)[0].decode()
        self.assertEqual(p.returncode, 1)
        self.assertIn("cancelled", text)
        records = self.records(out)
        self.assertEqual(sum(r["metadata"]["was_cancelled"] for r in records), 2)
        with open(os.path.join(out, "profile_export_aiperf.json")) as f:
            self.assertTrue(json.load(f)["was_cancelled"])

    def test_a_wrong_key_is_named(self):
        done = subprocess.run([WEIR, "bench", "replay", "--url", self.url, "--api-key", "no", "--out", os.path.join(self.dir.name, "wrong"),
                               "--random-input-len", "9"], capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--api-key: the server refuses it", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
