/* corpus_test.c - the doctor against tests/corpus/oom: real figures in the real templates, each
 * file with the verdict that is expected of it in its first lines ("#: kind fragmentation"). */
#include "doctor/verdict.h"

#include "base/env.h"

#include "test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CORPUS SNUG_SOURCE_DIR "/tests/corpus/oom"
enum { CASES = 600 };

struct example {
    char file[300];
    enum oom_kind want;
    bool wants_also[OOM_KIND_COUNT];
    bool confirmed; /* label C: the cause is stated in the report */
    char rule[48];
    const char *text;
};

static enum oom_kind kind_of(const char *name)
{
    for (int k = 0; k < OOM_KIND_COUNT; k++)
        if (strcmp(oom_kind_name((enum oom_kind)k), name) == 0)
            return (enum oom_kind)k;
    test_fail(__FILE__, __LINE__, "no kind \"%s\"", name);
}

/* Reads the "#: key value" lines at the start; what follows is the text. */
static void read_head(char *data, struct example *x)
{
    while (strncmp(data, "#: ", 3) == 0) {
        char key[32] = "", value[128] = "";
        (void)sscanf(data, "#: %31s %127[^\n]", key, value);
        if (strcmp(key, "kind") == 0)
            x->want = kind_of(value);
        else if (strcmp(key, "also") == 0)
            x->wants_also[kind_of(value)] = true;
        else if (strcmp(key, "label") == 0)
            x->confirmed = value[0] == 'C';
        else if (strcmp(key, "rule") == 0)
            (void)snprintf(x->rule, sizeof x->rule, "%s", value);
        data = strchr(data, '\n') + 1;
    }
    x->text = data;
}

static bool judge(const struct example *x, size_t size, struct verdict *d)
{
    struct evidence v;
    struct text_reader *r = text_reader_new();
    text_reader_feed(r, x->text, size);
    evidence_from_text(text_reader_end(r), SIZE_MAX, &v);
    bool found = verdict_of(&v, d);
    text_reader_free(r);
    return found;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int names_of(char **names)
{
    int n = 0;
    DIR *dir = opendir(CORPUS);
    CHECK(dir != NULL);
    for (struct dirent *d; (d = readdir(dir)) && n < CASES;)
        if (strstr(d->d_name, ".txt"))
            names[n++] = mem_strdup(d->d_name);
    (void)closedir(dir);
    qsort(names, (size_t)n, sizeof *names, by_name);
    return n;
}

static const char *seen_rules[CASES];
static int n_seen;

/* One case; adds to the table and returns whether it agrees. */
static bool one(const char *name, int table[OOM_KIND_COUNT][OOM_KIND_COUNT], bool *confirmed)
{
    struct example x = {0};
    struct verdict d;
    struct err e;
    char *data;
    size_t n;
    (void)snprintf(x.file, sizeof x.file, CORPUS "/%s", name);
    CHECK_OK(file_read(x.file, 1 << 24, &data, &n, &e), &e);
    read_head(data, &x);
    bool found = judge(&x, n - (size_t)(x.text - data), &d);
    bool right = found && d.kind == x.want && (!x.rule[0] || strcmp(x.rule, d.rule) == 0);
    for (int k = 0; k < OOM_KIND_COUNT; k++) {
        bool named = false;
        for (int i = 0; i < d.n_also; i++)
            named = named || d.also[i].kind == (enum oom_kind)k;
        right = right && (!x.wants_also[k] || named);
    }
    table[x.want][d.kind]++;
    if (d.rule)
        seen_rules[n_seen++] = d.rule;
    *confirmed = x.confirmed;
    if (!right)
        printf(
            "  %s: %s (%s), expected %s%s%s\n", name, oom_kind_name(d.kind),
            d.rule ? d.rule : "no rule", oom_kind_name(x.want), x.rule[0] ? " by " : "", x.rule);
    mem_free(data);
    return right;
}

static void show(int table[OOM_KIND_COUNT][OOM_KIND_COUNT])
{
    printf("  %-17s", "expected \\ said");
    for (int k = 0; k < OOM_KIND_COUNT; k++)
        printf(" %.6s", oom_kind_name((enum oom_kind)k));
    printf("\n");
    for (int i = 0; i < OOM_KIND_COUNT; i++) {
        printf("  %-17s", oom_kind_name((enum oom_kind)i));
        for (int k = 0; k < OOM_KIND_COUNT; k++)
            printf(" %6d", table[i][k]);
        printf("\n");
    }
}

/* Each rule about texts has an example. */
static void check_rules(void)
{
    struct verdict_rule rule;
    for (int i = 0; verdict_rule_at(i, &rule); i++) {
        bool seen = rule.is_also || strncmp(rule.name, "snapshot_", 9) == 0 ||
                    strncmp(rule.name, "own_", 4) == 0;
        for (int k = 0; k < n_seen && !seen; k++)
            seen = strcmp(seen_rules[k], rule.name) == 0;
        if (!seen)
            test_fail(__FILE__, __LINE__, "rule %s has no example in tests/corpus/oom", rule.name);
    }
}

TEST(corpus, "T3 T4: verdicts on the cases of public reports; the confirmed ones all agree")
{
    static char *names[CASES];
    int table[OOM_KIND_COUNT][OOM_KIND_COUNT] = {0};
    int n = names_of(names), right = 0, wrong_confirmed = 0;
    for (int i = 0; i < n; i++) {
        bool confirmed, ok = one(names[i], table, &confirmed);
        right += ok;
        wrong_confirmed += confirmed && !ok;
        mem_free(names[i]);
    }
    printf("  %d of %d cases\n", right, n);
    show(table);
    check_rules();
    CHECK(n >= 120);
    CHECK(10 * right >= 9 * n);
    CHECK_EQ(wrong_confirmed, 0);
}
