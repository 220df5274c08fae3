/* page.c - puts a plan's document into the page. */
#include "plan/page.h"

extern const unsigned char page_html[]; /* ends with a NUL (cmake/embed.cmake) */

void page_text(const json_t *plan, struct str *out)
{
    json_into_page((const char *)page_html, "id=\"plan\">", plan, out);
}
