/* page.c - puts a plan's document into the page. */
#include "plan/page.h"

#include "base/mem.h"

#include <string.h>

extern const unsigned char page_html[]; /* ends with a NUL (cmake/embed.cmake) */

/* JSON within a script element: "<" could end it. */
static void add_json(struct str *out, const char *text)
{
    for (size_t n; *text; text += n) {
        n = strcspn(text, "<");
        str_add_n(out, text, n);
        if (text[n] == '<') {
            str_add(out, "\\u003c");
            n++;
        }
    }
}

void page_text(const json_t *plan, struct str *out)
{
    static const char mark[] = "id=\"plan\">";
    const char *page = (const char *)page_html, *at = strstr(page, mark);
    ASSERT(at);
    at += sizeof mark - 1;
    char *text = json_text(plan, false);
    str_add_n(out, page, (size_t)(at - page));
    add_json(out, text);
    str_add(out, at + 2); /* what stands there is {} */
    mem_free(text);
}
