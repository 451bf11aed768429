// corpus.mjs: the texts that the oracle compares, the same on every run with the same seed.
// Generated ones aim at the rules of the pre-tokeniser; those found on the system (headers,
// documentation, translations in about 200 languages) are what text is really like.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";

export function random(seed) {
  let x = (seed * 2654435761 + 1) >>> 0;
  const next = () => {
    x ^= x << 13;
    x >>>= 0;
    x ^= x >>> 17;
    x ^= x << 5;
    x >>>= 0;
    return x;
  };
  for (let i = 0; i < 8; i++) next();
  return {
    below: (n) => next() % n,
    pick: (list) => list[next() % list.length],
  };
}

// At least one character for every way in which the classes of the pattern combine.
const corners = [
  "a", "z", "é", "ß", "ſ", "ѐ", "𝒶", // Ll
  "A", "S", "É", "İ", "Σ", "𝐀", "𐵐", // Lu, the last added in Unicode 16
  "ǅ", "ᾈ", // Lt
  "ʰ", "ー", "ˈ", // Lm
  "ª", "א", "あ", "가", "ก", "𐴀", "𖵀", // Lo and Lm
  "\u0301", "\u0903", "\u20dd", "\ufe0f", "\u{1d165}", "\u302a", // M
  "中", "文", "漢", "\u{20000}", "\u{2ebf0}", "\u{31350}", // Han, Lo
  "々", "〇", "〡", "⺀", "⼀", "\u{16ff0}", "\u3038", // Han, but Lm, Nl, So, M
  "0", "7", "²", "½", "Ⅷ", "٣", "\u{10d40}", "\u{1ccf0}", // N
  " ", " ", " ", "\t", "\u00a0", "\u0085", "\u2028", "\u3000", "\u200a", "\v", // white space
  "\n", "\r", "\r\n",
  ".", "!", "-", "_", "(", "\"", "、", "·", "、", "\u200d", "\ufeff", "\u180e", "\u001c", "\0", // signs, Cc, Cf
  "😀", "👩", "+", "€", "\ue000", "\u{10ffff}", "\u0378", "\ufffd", // S, Co, Cn
  "'", "'s", "'S", "'ſ", "'t", "'RE", "'re", "'ve", "'vE", "'m", "'LL", "'lL", "'d", "'D", "'l", "'r", "’s",
];

function cornerText(r) {
  let s = "";
  const one = r.below(3) === 0 ? corners : Array.from({ length: 2 + r.below(6) }, () => r.pick(corners));
  for (let n = 1 + r.below(400); n > 0; n--) {
    const c = r.pick(one);
    s += r.below(8) === 0 ? c.repeat(1 + r.below(12)) : c;
  }
  return s;
}

const syllables = "a be ci do fu ka lem nor pri qu st ter tion ing ly er un re The Al Mac O' W X-".split(" ");
const code = ["if (", "for (int i = 0; i < n; i++) {", "\n    ", "\n\t\t", "return", "->", "::", "===", "// ", "/*", "*/", ");\n", "}\n", "foo_bar", "CamelCase", "XMLHttpRequest", "0x1F", "3.14159e-10", "#define ", "\\u00e9", "\"%s\\n\"", "\r\n", "&&", "<div class='x'>", "@media", "$HOME", "a[i]", "~/.bashrc"];
const emoji = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "❤️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🫨"];

// Frequent ones first, like real writing.
function skewed(r, n) {
  return Math.floor(n ** ((1 + r.below(1000)) / 1000)) - 1;
}

function writing(r) {
  let s = "";
  for (let n = 20 + r.below(400); n > 0; n--) {
    switch (r.below(12)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        let w = "";
        for (let k = 1 + r.below(4); k > 0; k--) w += r.pick(syllables);
        s += " " + (r.below(9) === 0 ? w.toUpperCase() : w);
        break;
      }
      case 4:
        s += String.fromCodePoint(0x4e00 + skewed(r, 20992));
        for (let k = r.below(20); k > 0; k--) s += String.fromCodePoint(0x4e00 + skewed(r, 20992));
        break;
      case 5:
        for (let k = r.below(15); k > 0; k--) s += String.fromCodePoint(r.below(3) ? 0x3041 + r.below(86) : 0x30a1 + r.below(90));
        break;
      case 6:
        for (let k = r.below(6); k > 0; k--) s += String.fromCodePoint(0xac00 + r.below(11172));
        break;
      case 7:
        s += r.pick(code);
        break;
      case 8:
        s += r.pick(emoji);
        break;
      case 9:
        s += String(r.below(1e9)).repeat(1 + r.below(3));
        break;
      case 10:
        s += r.pick([" ", "\n", "\t", "\u3000", "\r\n"]).repeat(1 + r.below(r.below(10) ? 6 : 300));
        break;
      default:
        s += r.pick([". ", ", ", "! ", "?\n\n", "; ", ": ", "。", "、", "...", "—", "--------", "'s", "'LL "]);
    }
  }
  return s;
}

function anyCharacter(r) {
  for (;;) {
    const plane = r.pick([0, 0, 0, 1, 1, 2, 3, 14, r.below(17)]);
    const c = plane * 0x10000 + r.below(0x10000);
    if (c < 0xd800 || c > 0xdfff) return String.fromCodePoint(c);
  }
}

function rare(r) {
  let s = "";
  for (let n = 50 + r.below(200); n > 0; n--) {
    s += r.pick(["", "", " ", "a", "A", "1", "\n", "'", "中"]);
    s += anyCharacter(r);
  }
  return s;
}

// Every step-th scalar value of the planes that hold characters (and every 61st of the others) beside
// a character of each class.
export function* sweep(step) {
  let s = "";
  for (let c = 0; c < 0x110000; c++) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    const plane = c >> 16;
    if (c % (plane > 3 && plane !== 14 ? 61 : step) !== 0) continue;
    const x = String.fromCodePoint(c);
    s += `a${x}b A${x}${x}B 1${x}2  ${x}!${x}\n${x}中${x}${x}'${x} \t${x}`;
    if (s.length > 20000) {
      yield s;
      s = "";
    }
  }
  yield s;
}

// Longer than the reference's windows and slices, so that its cuts show. tiktoken needs quadratic
// time for long pieces that merge little: those are for the full run.
export function* giants(r, full) {
  for (const unit of ["\n", "\u001c", "1", "ab ", "ʰ"].concat(full ? ["a", "A", " ", "\u3000", ".", "中", "\u0301"] : []))
    for (const n of [24999, 25001, 60000]) yield "x " + unit.repeat(n) + r.pick(["", " ", "a", "\n"]);
  yield (full ? "😀" : " ").repeat(25003);
  for (let i = 0; i < 3; i++) {
    let s = "";
    while (s.length < 900000) s += i === 0 ? "😀 hello  world 123\n" : i === 1 ? writing(r) : cornerText(r);
    yield s;
  }
  let s = "";
  for (let i = 0; i < 12; i++) s += r.pick(["1", "\n", "ʰ", "\u001d", "\u2028 "]).repeat(r.below(60000));
  yield s;
}

function* files(dir, wanted, depth = 0) {
  let names;
  try {
    names = readdirSync(dir).sort();
  } catch {
    return;
  }
  for (const name of names) {
    const path = join(dir, name);
    let st;
    try {
      st = statSync(path);
    } catch {
      continue;
    }
    if (st.isDirectory() && depth < 6) yield* files(path, wanted, depth + 1);
    else if (st.isFile() && st.size > 500 && st.size < 400000 && wanted.test(name)) yield path;
  }
}

// What this machine has installed; the corpus shrinks where it has less.
export function* found(r) {
  const kinds = [
    ["/usr/share/locale", /\.mo$/],
    ["/usr/include", /\.h$/],
    ["/usr/share/doc", /(\.txt|\.md|\.html|copyright|README)$/],
    ["/usr/lib/python3", /\.py$/],
    ["/usr/share/perl", /\.(pm|pod)$/],
  ].map(([dir, wanted]) => [...files(dir, wanted)]).filter((list) => list.length > 0);
  const decoder = new TextDecoder();
  while (kinds.length > 0) {
    const text = decoder.decode(readFileSync(r.pick(r.pick(kinds)))).replace(/[\0\ufffd]+/g, "\n");
    for (let at = 0; at < text.length; at += 20000) {
      yield text.slice(at, at + 20000);
    }
  }
}

export function* mixed(r, bytes) {
  const real = found(r);
  for (let have = 0; have < bytes; ) {
    const kind = r.below(10);
    const s = kind < 4 ? (real.next().value ?? writing(r)) : kind < 7 ? writing(r) : kind < 9 ? cornerText(r) : rare(r);
    have += Buffer.byteLength(s);
    yield s;
  }
}
