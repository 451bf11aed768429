// write.mjs: the mixed part of the corpus as one text on standard output, for bench_tokenizer.
//   node write.mjs MEGABYTES > text
import { writeSync } from "node:fs";
import { mixed, random } from "./corpus.mjs";

for (const text of mixed(random(2), Number(process.argv[2]) * 1e6)) {
  const utf8 = Buffer.from(text.replace(/\p{Surrogate}/gu, "?"));
  for (let at = 0; at < utf8.length; ) at += writeSync(1, utf8, at);
}
