/* said.c - words of people, progress bars and shells. */
#include "doctor/said.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { LOOK = 240, WORD_MOST = 12 };

static void lower(const char *line, char *out, size_t cap)
{
    size_t n = 0;
    for (; line[n] && n + 1 < cap; n++)
        out[n] = (char)tolower((unsigned char)line[n]);
    out[n] = 0;
}

static bool any(const char *s, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(s, list[i]))
            return true;
    return false;
}
#define ANY(s, list) any(s, list, sizeof list / sizeof *list)

/* ---- growth ---- */

bool said_growth(const char *line)
{
    /* settings, advice and what others print about other things */
    static const char *const not_said[] = {
        "memory_growth",
        "allow_growth",
        "memory growth",
        "leaked semaphore",
        "leaked shared",
        "if memory",
        "if your",
        "try ",
        "in case",
        "may ",
        "might ",
        "try to increase",
        "order to increase",
        "want to increase",
        "increase the mem",
        "increase memory",
        "increase your",
        "no memory leak",
        "without memory leak",
        "not a leak",
        "fix",
        "doesn't",
        "does not"};
    static const char *const things[] = {"memory",    "vram",    "cpu ram",
                                         "ram usage", "gpu mem", "gpu ram"};
    static const char *const verbs[] = {
        "grow",
        "grew",
        "increasing",
        "increases",
        "increased",
        "ly increase",
        "will increase",
        "to increase",
        "continue to grow",
        "keep increas",
        "rising",
        "rises",
        "climb",
        "goes up",
        "going up",
        "went up",
        "accumulat",
        "creep",
        "leak",
        "piles up",
        "fills up",
        "blows up",
        "explod",
        "more and more",
        "bigger and bigger"};
    char s[LOOK];
    lower(line, s, sizeof s);
    if (ANY(s, not_said))
        return false;
    static const char *const leaks[] = {"memory leak",  "leaking memory", "leaking gpu",
                                        "leaks memory", "leaks gpu",      "leaks vram"};
    if (ANY(s, leaks))
        return true;
    for (size_t i = 0; i < sizeof things / sizeof *things; i++) {
        const char *at = strstr(s, things[i]);
        if (!at)
            continue;
        char near[64];
        (void)snprintf(near, sizeof near, "%.60s", at);
        if (ANY(near, verbs))
            return true;
    }
    return false;
}

/* ---- the moment ---- */

static bool is_word(const char *s, size_t n, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(list[i]) == n && strncmp(s, list[i], n) == 0)
            return true;
    return false;
}

enum said_moment said_moment(const char *line)
{
    static const char *const evaluation[] = {"val",        "valid",      "eval",       "evaluate",
                                             "evaluating", "evaluation", "validation", "validating",
                                             "validate",   "test",       "testing"};
    static const char *const training[] = {"train", "training", "epoch", "epochs"};
    if (!(*line && strchr("vVeEtT", *line)) && !strpbrk(line, "(["))
        return SAID_NOTHING; /* most lines of most logs */
    char s[LOOK];
    lower(line, s, sizeof s);
    enum said_moment found = SAID_NOTHING;
    bool first = true;
    for (const char *p = s; *p;) {
        size_t n = 0;
        while (isalpha((unsigned char)p[n]) && n < WORD_MOST)
            n++;
        if (!n) {
            p++;
            continue;
        }
        /* at the start, or alone in brackets: "(valid):", "[Val]", never a word of a sentence */
        char before = p > s ? p[-1] : 0;
        bool bracket = (before == '(' && p[n] == ')') || (before == '[' && p[n] == ']');
        bool label = first && (!p[n] || strchr(":[(|", p[n]) ||
                               (p[n] == ' ' && (strchr(":[(|#", p[n + 1]) || !p[n + 1])));
        if ((bracket || label) && is_word(p, n, evaluation, sizeof evaluation / sizeof *evaluation))
            return SAID_EVALUATION;
        if ((bracket || label) && is_word(p, n, training, sizeof training / sizeof *training))
            found = SAID_TRAINING;
        first = false;
        p += n;
        while (isalpha((unsigned char)*p))
            p++;
    }
    return found;
}

/* ---- killed ---- */

bool said_killed(const char *line)
{
    static const char *const whole[] = {"Killed",  "Killed: 9",          "已杀死",      "已殺死",
                                        "Getötet", "Terminado (killed)", "Tué",         "Ucciso",
                                        "Убито",   "强制終了",           "강제 종료됨", "Morto"};
    size_t n = strlen(line);
    while (n && isspace((unsigned char)line[n - 1]))
        n--;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strlen(whole[i]) == n && memcmp(line, whole[i], n) == 0)
            return true;
    return (n > 8 && n < 160 && strstr(line, "Killed   ") != NULL) ||
           (n > 8 && n < 200 && strstr(line, ": Killed") && line[0] == '/') ||
           (n > 12 && n < 200 && strstr(line, " Killed ") && strstr(line, ": line "));
}
