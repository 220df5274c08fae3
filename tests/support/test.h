/* test.h - a small test harness: self-registering tests, each in a child process with a time limit.
 *
 *     TEST(rate_decays, "A4 case-T91: the rate is stepped per update")
 *     {
 *         CHECK(lr == 0.25);
 *         CHECK_NEAR(loss, 0.693147, 1e-6);
 *     }
 *
 * The words before the colon are requirement ids (P7, A2), training cases (case-T16) or queue
 * promises; `make trace` reads them. A failed CHECK ends its test. Closing line of the program:
 * `N passed, N failed, N skipped`. Arguments: a substring picks tests by name; -l lists them.
 */
#ifndef TESTS_SUPPORT_TEST_H
#define TESTS_SUPPORT_TEST_H

#include <stdbool.h>
#include <stdint.h>

struct test {
    const char *name, *about, *file;
    void (*run)(void);
    int seconds_max;
    struct test *next;
};
void test_register(struct test *t);
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *why);
/* Seed of this test run (environment SNUG_TEST_SEED, else fixed); printed with every failure. */
uint64_t test_seed(void);
/* A fresh folder of this test, removed afterwards. */
const char *test_dir(void);

#define TEST_WITHIN(ident, seconds, text)                                                          \
    static void test_##ident(void);                                                                \
    __attribute__((constructor)) static void register_##ident(void)                                \
    {                                                                                              \
        static struct test t = {#ident, text, __FILE__, test_##ident, seconds, 0};                 \
        test_register(&t);                                                                         \
    }                                                                                              \
    static void test_##ident(void)
#define TEST(ident, text) TEST_WITHIN(ident, 60, text)

#define CHECK(cond) ((cond) ? (void)0 : test_fail(__FILE__, __LINE__, "%s", #cond))
#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        long long ca_ = (long long)(a), cb_ = (long long)(b);                                      \
        if (ca_ != cb_)                                                                            \
            test_fail(__FILE__, __LINE__, "%s is %lld, not %lld (%s)", #a, ca_, cb_, #b);          \
    } while (0)
#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *ca_ = (a), *cb_ = (b);                                                         \
        if (!ca_ || !cb_ || __builtin_strcmp(ca_, cb_) != 0)                                       \
            test_fail(                                                                             \
                __FILE__, __LINE__, "%s is \"%s\", not \"%s\"", #a, ca_ ? ca_ : "(null)",          \
                cb_ ? cb_ : "(null)");                                                             \
    } while (0)
#define CHECK_NEAR(a, b, tolerance)                                                                \
    do {                                                                                           \
        double ca_ = (a), cb_ = (b), ct_ = (tolerance);                                            \
        if (!(__builtin_fabs(ca_ - cb_) <= ct_))                                                   \
            test_fail(__FILE__, __LINE__, "%s is %.9g, not %.9g within %g", #a, ca_, cb_, ct_);    \
    } while (0)
/* For calls that must succeed: shows the error's text. */
#define CHECK_OK(call, e)                                                                          \
    do {                                                                                           \
        if ((call) != 0)                                                                           \
            test_fail(__FILE__, __LINE__, "%s: %s", #call, (e)->text);                             \
    } while (0)

#endif
