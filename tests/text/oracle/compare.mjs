// compare.mjs: encodes the corpus with tiktoken (the Rust library, compiled to WebAssembly) and with
// weir, and fails on the first id that differs.
//
//   node compare.mjs ENCODE_IDS MODULES tiny|large|pairs TINY_RANKS quick|full
//
// ENCODE_IDS is the test program tests/text/encode_ids.c, MODULES the directory of node_modules.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { giants, mixed, random, sweep } from "./corpus.mjs";

const [encodeIds, modules, vocabulary, tinyRanks, extent] = process.argv.slice(2);
const full = extent === "full";
const megabytes = full ? 30 : 5;
const require = createRequire(join(modules, "package.json"));
const { Tiktoken } = require("tiktoken/lite");

const pattern = [
  String.raw`[\p{Han}]+`,
  String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
  String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
  String.raw`\p{N}{1,3}`,
  String.raw` ?[^\s\p{L}\p{N}]+[\r\n]*`,
  String.raw`\s*[\r\n]+`,
  String.raw`\s+(?!\S)`,
  String.raw`\s+`,
].join("|");

// Single bytes and every pair of bytes, in shuffled order: almost any shift of a cut between two
// pre-tokens changes ids, also where a real vocabulary knows no merge.
function everyPair() {
  const r = random(7);
  const tokens = [];
  for (let a = 0; a < 256; a++) {
    tokens.push(Buffer.from([a]));
    for (let b = 0; b < 256; b++) tokens.push(Buffer.from([a, b]));
  }
  for (let i = tokens.length - 1; i > 0; i--) {
    const k = r.below(i + 1);
    [tokens[i], tokens[k]] = [tokens[k], tokens[i]];
  }
  return tokens.map((t, i) => t.toString("base64") + " " + i);
}

function rankLines() {
  if (vocabulary === "pairs") return everyPair();
  const large = require.resolve("gpt-tokenizer/package.json").replace("package.json", "data/o200k_base.tiktoken");
  const lines = readFileSync(vocabulary === "tiny" ? tinyRanks : large, "utf8").split("\n");
  return lines.filter((l) => l).slice(0, 163584);
}

// The reference's wrapper around tiktoken: windows of 400,000 characters, and slices where more than
// 25,000 characters in a row are white space (as Python's str.isspace has it), or are not.
const pythonSpace = /^[\p{White_Space}\x1c-\x1f]$/u;
function* slices(text) {
  const characters = Array.from(text);
  for (let w = 0; w < characters.length; w += 400000) {
    const window = characters.slice(w, w + 400000);
    let start = 0;
    let run = 0;
    let kind = null;
    for (let i = 0; i < window.length; i++) {
      const space = pythonSpace.test(window[i]);
      run = space === kind ? run + 1 : 1;
      kind = space;
      if (run > 25000) {
        yield window.slice(start, i).join("");
        start = i;
        run = 1;
      }
    }
    yield window.slice(start).join("");
  }
}

function encodeReference(oracle, text) {
  if (text.length <= 25000) return oracle.encode_ordinary(text);
  const ids = [];
  for (const slice of slices(text)) for (const id of oracle.encode_ordinary(slice)) ids.push(id);
  return ids;
}

function fail(text, want, got, at) {
  console.error(`${vocabulary}: ids differ at ${at}: tiktoken ${want.slice(at, at + 8)} weir ${Array.from(got.subarray(at, at + 8))}`);
  console.error(JSON.stringify(text.length > 2000 ? text.slice(0, 2000) + "..." : text));
  process.exit(1);
}

const lines = rankLines();
const work = mkdtempSync(join(tmpdir(), "weir-oracle-"));
const rankFile = join(work, "tiktoken.model");
writeFileSync(rankFile, lines.join("\n") + "\n");
const oracle = new Tiktoken("! 0 " + lines.map((l, i) => {
  const [token, rank] = l.split(" ");
  if (Number(rank) !== i) throw new Error(`rank ${rank} stands on line ${i + 1}`);
  return token;
}).join(" "), {}, pattern);

let bytes = 0;
let texts = 0;
let ids = 0;
function compareBatch(batch) {
  const input = [];
  for (const text of batch) {
    const utf8 = Buffer.from(text);
    const head = Buffer.alloc(4);
    head.writeUInt32LE(utf8.length);
    input.push(head, utf8);
    bytes += utf8.length;
  }
  const run = spawnSync(encodeIds, [rankFile], { input: Buffer.concat(input), maxBuffer: 1 << 30 });
  if (run.status !== 0) {
    console.error(`${encodeIds}: ${run.error ?? run.stderr} (${run.signal ?? run.status})`);
    process.exit(1);
  }
  const output = new Int32Array(new Uint8Array(run.stdout).buffer);
  let at = 0;
  for (const text of batch) {
    const n = output[at];
    const got = output.subarray(at + 1, at + 1 + n);
    at += 1 + n;
    const want = encodeReference(oracle, text);
    for (let i = 0; i < Math.max(n, want.length); i++) if (got[i] !== want[i]) fail(text, Array.from(want), got, i);
    texts++;
    ids += n;
  }
  if (at !== output.length) throw new Error("more output than texts");
}

function* corpus() {
  const r = random({ tiny: 1, large: 2, pairs: 3 }[vocabulary]);
  if (vocabulary === "pairs") yield* sweep(full ? 1 : 7);
  else if (vocabulary === "large") yield* giants(r, full);
  yield* mixed(r, megabytes * 1e6);
}

let batch = [];
let size = 0;
for (const text of corpus()) {
  batch.push(text.replace(/\p{Surrogate}/gu, "?")); // halves of a pair that a slice has cut
  size += text.length;
  if (size > 4e6) {
    compareBatch(batch);
    batch = [];
    size = 0;
  }
}
compareBatch(batch);
rmSync(work, { recursive: true });
if (bytes < megabytes * 1e6 || ids === 0) throw new Error("the corpus was too small");
console.log(`${vocabulary}: ${texts} texts, ${(bytes / 1e6).toFixed(1)} MB, ${ids} ids: all equal to tiktoken's`);
