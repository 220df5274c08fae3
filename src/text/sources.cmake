set(SOURCES
    utf8.c vocab.c pattern.c normalize.c pretokenize.c bpe.c decode.c
    tokenizer.c tokenizer_json.c tokenizer_steps.c tokenizer_ranks.c train.c corpus.c)
set(TESTS tokenizer_test.c corpus_test.c)
set(FUZZ tokenizer_fuzz.c)
set(LIBS PkgConfig::PCRE2 PkgConfig::UTF8PROC)
