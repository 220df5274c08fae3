// Tokenizes lines with npm's tokenizers, for test_tokenizers.py:
//   node tokenize.mjs PACKAGES WHICH < lines (JSON list of strings) > numbers (JSON list of lists)
// WHICH: tiktoken:ENCODING, or the folder of a package with models/tokenizer.json, or llama-tokenizer-js ...
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";

const [packages, which] = process.argv.slice(2);
const lines = JSON.parse(fs.readFileSync(0, "utf8"));
const at = (...parts) => path.resolve(packages, ...parts);

async function encoder() {
  if (which.startsWith("tiktoken:")) {
    const { get_encoding } = createRequire(import.meta.url)(at("tiktoken", "tiktoken.cjs"));
    const encoding = get_encoding(which.slice(9));
    return (line) => Array.from(encoding.encode(line, [], []));
  }
  if (which.startsWith("json:")) {
    const { Tokenizer } = await import(at("huggingface-tokenizers", "dist", "tokenizers.mjs"));
    const tokenizer = new Tokenizer(JSON.parse(fs.readFileSync(which.slice(5), "utf8")), {});
    return (line) => tokenizer.encode(line, { add_special_tokens: false }).ids;
  }
  const module = await import(at(which, JSON.parse(fs.readFileSync(at(which, "package.json"))).main));
  const tokenizer = module.default;
  if (which === "llama3-tokenizer-js") return (line) => tokenizer.encode(line, { bos: false, eos: false });
  return (line) => tokenizer.encode(line, false); // no token of the beginning; with the first space
}

const encode = await encoder();
const out = lines.map(encode);
fs.writeSync(1, JSON.stringify(out));
