/* raster.c - our own charts as pixels, with soft edges. */
#include "runner/raster.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct picture {
    int w, h;
    uint8_t *rgb;
};
struct colour {
    uint8_t rgb[3];
    bool none;
};

/* ---- pixels ---- */

static void blend(const struct picture *p, int x, int y, const struct colour *c, double alpha)
{
    if (x < 0 || y < 0 || x >= p->w || y >= p->h || alpha <= 0)
        return;
    uint8_t *at = &p->rgb[(y * p->w + x) * 3];
    for (int i = 0; i < 3; i++)
        at[i] = (uint8_t)lround(at[i] + (c->rgb[i] - at[i]) * fmin(alpha, 1));
}

static double distance(double px, double py, const double a[2], const double b[2])
{
    double dx = b[0] - a[0], dy = b[1] - a[1], length = dx * dx + dy * dy;
    double t = length > 0 ? ((px - a[0]) * dx + (py - a[1]) * dy) / length : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    return hypot(px - a[0] - t * dx, py - a[1] - t * dy);
}

/* Also a disc, where both ends are the same. */
static void stroke(
    const struct picture *p, const double a[2], const double b[2], double width,
    const struct colour *c)
{
    double r = width / 2 + 1;
    int x0 = (int)fmax(0, floor(fmin(a[0], b[0]) - r)), x1 = (int)ceil(fmax(a[0], b[0]) + r);
    int y0 = (int)fmax(0, floor(fmin(a[1], b[1]) - r)), y1 = (int)ceil(fmax(a[1], b[1]) + r);
    for (int y = y0; y <= y1 && y < p->h; y++)
        for (int x = x0; x <= x1 && x < p->w; x++)
            blend(p, x, y, c, width / 2 + 0.5 - distance(x + 0.5, y + 0.5, a, b));
}

static void
fill(const struct picture *p, double x, double y, double w, double h, const struct colour *c)
{
    for (int j = (int)fmax(0, round(y)); j < (int)fmin(p->h, round(y + h)); j++)
        for (int i = (int)fmax(0, round(x)); i < (int)fmin(p->w, round(x + w)); i++)
            blend(p, i, j, c, 1);
}

/* ---- digits ---- */

enum { GLYPH_ROWS = 7, GLYPH_COLUMNS = 5, GLYPH_SCALE = 2, GLYPH_STEP = 12 };
static const char glyphs[] = "0123456789.-+e";
/* A row of pixels a byte, the leftmost in bit 4. */
static const uint8_t glyph_rows[][GLYPH_ROWS] = {
    {0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e}, {0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e},
    {0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f}, {0x1f, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0e},
    {0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02}, {0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e},
    {0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e}, {0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08},
    {0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e}, {0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c},
    {0x00, 0x00, 0x00, 0x00, 0x00, 0x0c, 0x0c}, {0x00, 0x00, 0x00, 0x1f, 0x00, 0x00, 0x00},
    {0x00, 0x04, 0x04, 0x1f, 0x04, 0x04, 0x00}, {0x00, 0x00, 0x0e, 0x11, 0x1f, 0x10, 0x0e}};

static void
draw_glyph(const struct picture *p, int index, double x, double y, const struct colour *c)
{
    for (int row = 0; row < GLYPH_ROWS; row++)
        for (int column = 0; column < GLYPH_COLUMNS; column++)
            if (glyph_rows[index][row] >> (GLYPH_COLUMNS - 1 - column) & 1)
                fill(
                    p, x + column * GLYPH_SCALE, y + row * GLYPH_SCALE, GLYPH_SCALE, GLYPH_SCALE,
                    c);
}

/* ---- elements ---- */

/* The value of an attribute within a tag of `n` bytes, up to its closing quote; NULL: none. */
static const char *attribute(const char *tag, size_t n, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = tag; at + length + 2 < tag + n; at++)
        if (*at == ' ' && strncmp(at + 1, name, length) == 0 &&
            strncmp(at + 1 + length, "=\"", 2) == 0)
            return at + length + 3;
    return NULL;
}

static double number(const char *tag, size_t n, const char *name, double fallback)
{
    const char *value = attribute(tag, n, name);
    return value ? strtod(value, NULL) : fallback;
}

static struct colour colour_of(const char *tag, size_t n, const char *name)
{
    const char *value = attribute(tag, n, name);
    struct colour c = {.none = !value || *value != '#'};
    unsigned long v = c.none ? 0 : strtoul(value + 1, NULL, 16);
    c.rgb[0] = (uint8_t)(v >> 16);
    c.rgb[1] = (uint8_t)(v >> 8);
    c.rgb[2] = (uint8_t)v;
    return c;
}

static void draw_rect(const struct picture *p, const char *tag, size_t n)
{
    struct colour c = colour_of(tag, n, "fill");
    if (!c.none)
        fill(
            p, number(tag, n, "x", 0), number(tag, n, "y", 0), number(tag, n, "width", 0),
            number(tag, n, "height", 0), &c);
}

static void draw_line(const struct picture *p, const char *tag, size_t n)
{
    double a[] = {number(tag, n, "x1", 0), number(tag, n, "y1", 0)};
    double b[] = {number(tag, n, "x2", 0), number(tag, n, "y2", 0)};
    struct colour c = colour_of(tag, n, "stroke");
    stroke(p, a, b, number(tag, n, "stroke-width", 1), &c);
}

static void draw_circle(const struct picture *p, const char *tag, size_t n)
{
    double at[] = {number(tag, n, "cx", 0), number(tag, n, "cy", 0)};
    struct colour c = colour_of(tag, n, "fill");
    stroke(p, at, at, 2 * number(tag, n, "r", 0), &c);
}

static void draw_path(const struct picture *p, const char *tag, size_t n)
{
    const char *d = attribute(tag, n, "d");
    double from[2] = {0, 0}, to[2];
    struct colour c = colour_of(tag, n, "stroke");
    double width = number(tag, n, "stroke-width", 1);
    while (d && *d && *d != '"') {
        char command = *d == 'M' || *d == 'L' ? *d : 0;
        char *end;
        d++;
        if (!command)
            continue;
        to[0] = strtod(d, &end);
        to[1] = strtod(end, &end);
        if (command == 'L')
            stroke(p, from, to, width, &c);
        memcpy(from, to, sizeof from);
        d = end > d ? end : d;
    }
}

static void draw_text(const struct picture *p, const char *tag, size_t n)
{
    const char *text = tag + n + 1, *anchor = attribute(tag, n, "text-anchor");
    size_t length = strcspn(text, "<");
    struct colour c = colour_of(tag, n, "fill");
    double x = number(tag, n, "x", 0), y = number(tag, n, "y", 0);
    double wide = (double)length * GLYPH_STEP;
    if (strspn(text, glyphs) < length)
        return;
    if (anchor && strncmp(anchor, "end", 3) == 0)
        x -= wide;
    else if (anchor && strncmp(anchor, "middle", 6) == 0)
        x -= wide / 2;
    for (size_t i = 0; i < length; i++)
        draw_glyph(
            p, (int)(strchr(glyphs, text[i]) - glyphs), x + (double)i * GLYPH_STEP,
            y - GLYPH_ROWS * GLYPH_SCALE, &c);
}

void raster_svg(const char *svg, int w, int h, uint8_t *rgb)
{
    static const struct {
        const char *name;
        void (*draw)(const struct picture *p, const char *tag, size_t n);
    } elements[] = {
        {"<rect ", draw_rect},
        {"<line ", draw_line},
        {"<circle ", draw_circle},
        {"<path ", draw_path},
        {"<text ", draw_text}};
    struct picture p = {w, h, rgb};
    memset(rgb, 255, (size_t)w * (size_t)h * 3);
    for (const char *tag = strchr(svg, '<'); tag; tag = strchr(tag + 1, '<')) {
        size_t n = strcspn(tag, ">");
        if (!tag[n])
            return;
        for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
            if (strncmp(tag, elements[i].name, strlen(elements[i].name)) == 0)
                elements[i].draw(&p, tag, n);
    }
}
