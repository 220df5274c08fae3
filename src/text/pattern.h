/* pattern.h - regular expressions over UTF-8 (PCRE2), and cutting text by them.
 *
 * The dialect is what tokenizer files are written in: \s is Unicode's White_Space, classes and case
 * are Unicode's, $ is the end of the text. Each match has a limit of steps: a file with a pattern
 * that explodes gets an error, not the machine.
 */
#ifndef TEXT_PATTERN_H
#define TEXT_PATTERN_H

#include "base/err.h"
#include "base/mem.h"

#include <stddef.h>

/* How GPT-2, GPT-4 and GPT-4o cut text into pieces that merges do not cross. */
#define PATTERN_GPT2                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define PATTERN_ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define PATTERN_REST "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_CL100K                                                                             \
    PATTERN_ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"                                   \
                    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" PATTERN_REST
#define PATTERN_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define PATTERN_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PATTERN_O200K                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?" PATTERN_UPPER "*" PATTERN_LOWER "+" PATTERN_ENDINGS "?"               \
    "|[^\\r\\n\\p{L}\\p{N}]?" PATTERN_UPPER "+" PATTERN_LOWER "*" PATTERN_ENDINGS "?"              \
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" PATTERN_REST

struct pattern;
/* ST_UNSUPPORTED where it cannot be compiled; the text says where in it. */
enum status pattern_new(const char *regex, struct pattern **out, struct err *e) NODISCARD;
/* Matches exactly this text. */
enum status pattern_new_literal(const char *text, struct pattern **out, struct err *e) NODISCARD;
void pattern_free(struct pattern *p);

struct span {
    size_t at, n; /* bytes */
};
struct spans {
    struct span *data;
    size_t n, cap;
};
/* The next match that is not empty at or after `from`; found->n 0: none. */
enum status pattern_find(
    struct pattern *p, const char *text, size_t n, size_t from, struct span *found,
    struct err *e) NODISCARD;

enum split_behavior { /* what becomes of the matches: names of the tokenizers library */
                      SPLIT_REMOVED,
                      SPLIT_ISOLATED,
                      SPLIT_MERGED_WITH_PREVIOUS,
                      SPLIT_MERGED_WITH_NEXT,
                      SPLIT_CONTIGUOUS
};
/* Cuts text[piece] and appends the pieces. `invert`: what lies between matches counts as the match.
 */
enum status pattern_split(
    struct pattern *p, enum split_behavior behavior, bool invert, const char *text,
    struct span piece, struct spans *out, struct err *e) NODISCARD;

#endif
