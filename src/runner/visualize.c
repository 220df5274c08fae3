/* visualize.c - the Visualize node: numbers as a chart (SVG) or as pixels (PNG).
 *
 * Numbers come from a tensor, a number, or a JSON value with numbers in it. Files are
 * SNUG_HOME/images/<graph>-<node>.svg or .png, written whole. NaN and infinities leave gaps. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/str.h"
#include "data/image.h"
#include "runner/raster.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PLOT_LINE, PLOT_HISTOGRAM, PLOT_HEATMAP, PLOT_IMAGE };
enum { WIDTH = 720, HEIGHT = 420, LEFT = 76, RIGHT = 24, TOP = 52, BOTTOM = 48, BINS_MAX = 64 };
enum { TICKS_MAX = 12, POINTS_MAX = 4000, PIXELS_MAX = 1 << 22, SIDE_WANTED = 448 };

/* The numbers of an input: n of them, `dims` where they are a grid. */
struct numbers {
    VEC(double) v;
    int64_t dims[RANK_MAX];
    int rank;
};

/* A linear axis from `low` to `high` with ticks every `step`. */
struct axis {
    double low, high, step;
};

/* ---- reading ---- */

/* Every number below `j`, in order; the texts that stand for what JSON cannot hold are gaps. */
static void json_numbers(json_t *j, struct numbers *out)
{
    const char *key, *s;
    json_t *item;
    size_t i;
    if (json_is_number(j)) {
        vec_push(&out->v, json_number_value(j));
    } else if (json_is_string(j)) {
        s = json_string_value(j);
        if (str_eq(s, "NaN") || str_eq(s, "Infinity") || str_eq(s, "-Infinity"))
            vec_push(&out->v, (double)NAN);
    } else if (json_is_array(j)) {
        json_array_foreach(j, i, item) json_numbers(item, out);
    } else if (json_is_object(j)) {
        json_object_foreach(j, key, item) json_numbers(item, out);
    }
}

static enum status read_numbers(const struct flow *in, struct numbers *out, struct err *e)
{
    if (in->kind == FLOW_SCALAR) {
        vec_push(&out->v, in->scalar);
    } else if (in->kind == FLOW_JSON) {
        json_numbers(in->json, out);
    } else if (in->kind == FLOW_NUMBERS) {
        int64_t n = shape_count(&in->numbers->shape);
        for (int64_t i = 0; i < n; i++)
            vec_push(&out->v, dtype_load(in->numbers->data, in->numbers->dtype, i));
        out->rank = in->numbers->shape.rank;
        for (int i = 0; i < out->rank; i++)
            out->dims[i] = in->numbers->shape.dim[i];
        return ST_OK;
    } else {
        return err_set(
            e, ST_INVALID, "input 'data' is %s: numbers are wanted", flow_name(in->kind));
    }
    out->rank = 1;
    out->dims[0] = (int64_t)out->v.n;
    return ST_OK;
}

static bool finite_range(const struct numbers *x, double *low, double *high)
{
    bool any = false;
    for (size_t i = 0; i < x->v.n; i++) {
        double v = x->v.data[i];
        if (!isfinite(v))
            continue;
        *low = any ? fmin(*low, v) : v;
        *high = any ? fmax(*high, v) : v;
        any = true;
    }
    return any;
}

/* ---- axes ---- */

/* The least of 1, 2, 5 times a power of ten that gives at most `most` steps. */
static double nice_step(double range, int most)
{
    double power = pow(10, floor(log10(range / most)));
    static const double steps[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (range / (steps[i] * power) <= most)
            return steps[i] * power;
    return 10 * power;
}

/* An axis with round ends that holds low..high, also where they are equal or hugely apart. */
static struct axis axis_of(double low, double high)
{
    double size = fmax(fabs(low), fabs(high));
    if (high - low <= size * 1e-9) {
        double room = size > 0 ? size * 0.1 : 1;
        low -= room;
        high += room;
    }
    if (!isfinite(high - low)) { /* the difference of two huge numbers */
        low /= 4;
        high /= 4;
    }
    double step = nice_step(high - low, 6);
    return (struct axis){floor(low / step) * step, ceil(high / step) * step, step};
}

static double place(const struct axis *a, double v, double from, double to)
{
    return from + (v - a->low) / (a->high - a->low) * (to - from);
}

/* ---- SVG ---- */

static void add_escaped(struct str *s, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            str_add(s, "&lt;");
        else if (*text == '>')
            str_add(s, "&gt;");
        else if (*text == '&')
            str_add(s, "&amp;");
        else if (*text == '"')
            str_add(s, "&quot;");
        else if ((unsigned char)*text >= 32)
            str_add_n(s, text, 1);
    }
}

static void svg_begin(struct str *s, const char *title)
{
    str_printf(
        s,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
        "height=\"%d\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    str_printf(
        s, "<text x=\"%d\" y=\"30\" font-size=\"17\" font-weight=\"600\" fill=\"#1f2933\">", LEFT);
    add_escaped(s, title);
    str_add(s, "</text>\n");
}

static void svg_note(struct str *s, const char *text)
{
    str_printf(
        s, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"#7b8794\">%s</text>\n",
        (LEFT + WIDTH - RIGHT) / 2, HEIGHT / 2, text);
}

/* Digits that tell neighbouring ticks apart. */
static void tick_text(double v, double step, char *buf, size_t cap)
{
    double size = fmax(fabs(v), step);
    if (fabs(v) < step * 1e-6)
        (void)snprintf(buf, cap, "0");
    else if (size >= 1e6 || step < 1e-4)
        (void)snprintf(buf, cap, "%.*g", (int)fmin(9, 2 + fmax(0, log10(size / step))), v);
    else
        (void)snprintf(buf, cap, "%.*f", (int)fmax(0, ceil(-log10(step) - 1e-9)), v);
}

static void axis_y(struct str *s, const struct axis *a)
{
    char text[48];
    int n = (int)lround((a->high - a->low) / a->step);
    for (int i = 0; i <= n && i <= TICKS_MAX; i++) {
        double v = a->low + i * a->step, y = place(a, v, HEIGHT - BOTTOM, TOP);
        tick_text(v, a->step, text, sizeof text);
        str_printf(
            s, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e4e7eb\"/>\n", LEFT,
            WIDTH - RIGHT, y, y);
        str_printf(
            s, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" fill=\"#616e7c\">%s</text>\n",
            LEFT - 8, y + 4.5, text);
    }
}

/* Ticks of the horizontal axis; `whole`: at integers only. */
static void axis_x(struct str *s, const struct axis *a, bool whole, const char *label)
{
    char text[48];
    double step = whole ? fmax(1, a->step) : a->step;
    str_printf(
        s, "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"#9aa5b1\"/>\n", LEFT,
        WIDTH - RIGHT, HEIGHT - BOTTOM, HEIGHT - BOTTOM);
    double first = ceil(a->low / step - 1e-9) * step;
    for (int i = 0; i <= TICKS_MAX && first + i * step <= a->high + 1e-9 * step; i++) {
        double v = first + i * step;
        tick_text(v, step, text, sizeof text);
        str_printf(
            s, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" fill=\"#616e7c\">%s</text>\n",
            place(a, v, LEFT, WIDTH - RIGHT), HEIGHT - BOTTOM + 20, text);
    }
    str_printf(
        s,
        "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#7b8794\" font-size=\"12\">%s</text>\n",
        WIDTH - RIGHT, HEIGHT - 10, label);
}

static void dot(struct str *s, double x, double y)
{
    str_printf(s, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#2563eb\"/>\n", x, y);
}

/* The line, broken where a value is not finite; points by themselves, and few, get dots. */
static void
line_path(struct str *s, const struct numbers *x, const struct axis *ax, const struct axis *ay)
{
    struct str path, dots;
    size_t n = x->v.n, stride = n / POINTS_MAX + 1;
    bool down = false;
    str_init(&path);
    str_init(&dots);
    for (size_t i = 0; i < n; i += stride) {
        double v = x->v.data[i];
        bool next = i + stride < n && isfinite(x->v.data[i + stride]);
        if (isfinite(v)) {
            double px = place(ax, (double)i + 1, LEFT, WIDTH - RIGHT);
            double py = place(ay, v, HEIGHT - BOTTOM, TOP);
            str_printf(&path, "%s%.1f %.1f", down ? " L" : " M", px, py);
            if (n <= 40 || (!down && !next))
                dot(&dots, px, py);
        }
        down = isfinite(v);
    }
    str_printf(
        s,
        "<path d=\"%s\" fill=\"none\" stroke=\"#2563eb\" stroke-width=\"2\" "
        "stroke-linejoin=\"round\" stroke-linecap=\"round\"/>\n%s",
        path.data, dots.data);
    str_release(&path);
    str_release(&dots);
}

static void draw_line(struct str *s, const struct numbers *x)
{
    double low, high;
    if (!finite_range(x, &low, &high)) {
        svg_note(s, x->v.n ? "no finite numbers" : "no numbers");
        return;
    }
    struct axis ay = axis_of(low, high);
    double n = (double)x->v.n;
    struct axis ax = n > 1 ? (struct axis){1, n, nice_step(n - 1, 8)} : (struct axis){0, 2, 1};
    axis_y(s, &ay);
    axis_x(s, &ax, true, "index");
    line_path(s, x, &ax, &ay);
}

/* Bins by the square root of the count, at most BINS_MAX. */
static void draw_histogram(struct str *s, const struct numbers *x)
{
    double low, high, most = 0, count[BINS_MAX] = {0};
    if (!finite_range(x, &low, &high)) {
        svg_note(s, x->v.n ? "no finite numbers" : "no numbers");
        return;
    }
    struct axis ax = axis_of(low, high);
    int bins = (int)fmin(BINS_MAX, fmax(1, ceil(sqrt((double)x->v.n))));
    for (size_t i = 0; i < x->v.n; i++) {
        double v = x->v.data[i];
        if (!isfinite(v))
            continue;
        int b = (int)place(&ax, v, 0, bins);
        b = b >= bins ? bins - 1 : b < 0 ? 0 : b;
        count[b] += 1;
        most = fmax(most, count[b]);
    }
    struct axis ay = axis_of(0, most);
    axis_y(s, &ay);
    axis_x(s, &ax, false, "value");
    double width = (double)(WIDTH - LEFT - RIGHT) / bins;
    for (int b = 0; b < bins; b++) {
        double y = place(&ay, count[b], HEIGHT - BOTTOM, TOP);
        if (count[b] > 0)
            str_printf(
                s,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#2563eb\"/>\n",
                LEFT + b * width + 0.5, y, fmax(1, width - 1), HEIGHT - BOTTOM - y);
    }
}

/* The same picture beside it, for pages that show no SVG. */
static enum status write_pixels(const char *svg, const char *path, struct err *e)
{
    char png[1400];
    uint8_t *rgb = mem_try_alloc((size_t)WIDTH * HEIGHT * 3);
    if (!rgb)
        return err_set(e, ST_OOM, "no host memory for a picture");
    (void)snprintf(png, sizeof png, "%.*s.png", (int)(strlen(path) - strlen(".svg")), path);
    raster_svg(svg, WIDTH, HEIGHT, rgb);
    enum status st = png_write(png, WIDTH, HEIGHT, rgb, e);
    mem_free(rgb);
    return st;
}

static void draw_svg(struct str *s, int kind, const char *title, const struct numbers *x)
{
    svg_begin(s, title);
    if (kind == PLOT_HISTOGRAM)
        draw_histogram(s, x);
    else
        draw_line(s, x);
    str_add(s, "</svg>\n");
}

static enum status write_svg(
    struct run *r, int kind, const char *title, const struct numbers *x, const char *path,
    struct err *e)
{
    struct str s;
    str_init(&s);
    draw_svg(&s, kind, title, x);
    enum status st = file_write(path, s.data, s.n, e);
    if (st == ST_OK && r->sink.node)
        st = write_pixels(s.data, path, e);
    str_release(&s);
    return st;
}

/* ---- PNG ---- */

/* Colours of a heat map from low to high, between these interpolated (dark blue to yellow). */
static const uint8_t ramp[][3] = {{13, 8, 83},    {72, 3, 143},   {139, 10, 165}, {196, 65, 126},
                                  {231, 112, 84}, {251, 168, 56}, {240, 249, 33}};

static void heat_colour(double t, uint8_t rgb[3])
{
    int last = (int)(sizeof ramp / sizeof *ramp) - 1;
    double at = fmin(fmax(t, 0), 1) * last;
    int i = at >= last ? last - 1 : (int)at;
    for (int c = 0; c < 3; c++)
        rgb[c] = (uint8_t)lround(ramp[i][c] + (at - i) * (ramp[i + 1][c] - ramp[i][c]));
}

/* A picture in memory: planes of a [C, H, W] or [H, W, C] tensor, else one grid. */
struct grid {
    int64_t h, w, channels;
    int64_t row, column, channel; /* distances between neighbours */
};

/* The last two dimensions are the grid; of leading ones the first entry is shown. */
static struct grid grid_of(const struct numbers *x, bool picture)
{
    int r = x->rank;
    int64_t n = (int64_t)x->v.n;
    struct grid g = {1, n, 1, n, 1, 0};
    if (picture && r >= 3 && (x->dims[r - 3] == 3 || x->dims[r - 3] == 1)) {
        g = (struct grid){x->dims[r - 2], x->dims[r - 1], x->dims[r - 3], x->dims[r - 1], 1, 0};
        g.channel = g.h * g.w;
    } else if (picture && r >= 3 && x->dims[r - 1] == 3) {
        g = (struct grid){x->dims[r - 3], x->dims[r - 2], 3, x->dims[r - 2] * 3, 3, 1};
    } else if (r >= 2) {
        g = (struct grid){x->dims[r - 2], x->dims[r - 1], 1, x->dims[r - 1], 1, 0};
    } else if (picture && n > 1) {
        int64_t side = (int64_t)llround(sqrt((double)n));
        if (side * side == n)
            g = (struct grid){side, side, 1, side, 1, 0};
    }
    return g;
}

static void pixel(
    const struct numbers *x, const struct grid *g, int64_t row, int64_t column, bool heat,
    double low, double high, uint8_t rgb[3])
{
    const double *v = &x->v.data[row * g->row + column * g->column];
    double range = high > low ? high - low : 1;
    if (heat) {
        rgb[0] = rgb[1] = rgb[2] = 200; /* NaN is grey */
        if (isfinite(v[0]))
            heat_colour((v[0] - low) / range, rgb);
        return;
    }
    for (int c = 0; c < 3; c++) {
        double t = (v[g->channels == 3 ? c * g->channel : 0] - low) / range;
        rgb[c] = isfinite(t) ? (uint8_t)lround(255 * fmin(fmax(t, 0), 1)) : 0;
    }
}

/* Each number becomes a square of equal pixels, so that small grids can be seen. */
static enum status write_png(bool heat, const struct numbers *x, const char *path, struct err *e)
{
    double nothing = (double)NAN;
    struct numbers blank = {.v = {.data = &nothing, .n = 1}, .rank = 1, .dims = {1}};
    if (x->v.n == 0) /* an empty picture is one grey square */
        x = &blank;
    struct grid g = grid_of(x, !heat);
    double low = 0, high = 1;
    if (g.h > PIXELS_MAX / g.w)
        return err_set(
            e, ST_INVALID, "input 'data' is %lld by %lld: too large for a picture", (long long)g.h,
            (long long)g.w);
    bool any = finite_range(x, &low, &high);
    if (!heat && any && low >= 0 && high <= 1)
        low = 0, high = 1; /* a picture as ToTensor gives it keeps its brightness */
    else if (!heat && any && low >= 0 && high <= 255)
        low = 0, high = 255;
    int64_t longest = g.h > g.w ? g.h : g.w,
            zoom = longest < SIDE_WANTED ? SIDE_WANTED / longest : 1;
    int64_t w = g.w * zoom, h = g.h * zoom;
    uint8_t *rgb = mem_try_alloc((size_t)(w * h * 3));
    if (!rgb)
        return err_set(
            e, ST_OOM, "no host memory for a picture of %lld bytes", (long long)(w * h * 3));
    for (int64_t i = 0; i < h; i++)
        for (int64_t j = 0; j < w; j++)
            pixel(x, &g, i / zoom, j / zoom, heat, low, high, &rgb[(i * w + j) * 3]);
    enum status st = png_write(path, (int)w, (int)h, rgb, e);
    mem_free(rgb);
    return st;
}

/* ---- the node ---- */

static int plot_kind(const char *name)
{
    static const char *const names[] = {"line", "histogram", "heatmap", "image"};
    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return PLOT_LINE;
}

/* Letters, digits, "-" and "_" stay; the rest of a name becomes "_". At most 80 bytes. */
static void add_safe(char *out, size_t cap, const char *name)
{
    size_t n = strlen(out), end = n + 80;
    for (; *name && n + 1 < cap && n < end; name++)
        out[n++] = isalnum((unsigned char)*name) || *name == '-' ? *name : '_';
    out[n] = 0;
}

static enum status image_path(
    struct run *r, const struct graph_node *n, bool png, char *out, size_t cap, struct err *e)
{
    char dir[1024], name[256] = "";
    (void)path_join(snug_home(), "images", dir, sizeof dir);
    TRY(dir_make(dir, e));
    add_safe(name, sizeof name - 8, graph_name(r->graph));
    (void)snprintf(name + strlen(name), sizeof name - strlen(name), "-");
    add_safe(name, sizeof name - 8, n->id);
    (void)snprintf(name + strlen(name), sizeof name - strlen(name), png ? ".png" : ".svg");
    (void)path_join(dir, name, out, cap);
    return ST_OK;
}

enum status node_visualize(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    int kind = plot_kind(graph_param_str(n, "plot_type"));
    bool png = kind == PLOT_HEATMAP || kind == PLOT_IMAGE;
    struct numbers x = {0};
    struct flow in;
    char path[1400] = "";
    if (!flow_has(r, node, "data", &in))
        return err_set(
            e, ST_INVALID, "Missing required input 'data' on node %s (%s)", n->id, n->type);
    if (!r->planning) {
        const char *title = graph_param_str(n, "title");
        TRY(image_path(r, n, png, path, sizeof path, e));
        enum status st = read_numbers(&in, &x, e);
        if (st == ST_OK)
            st = png ? write_png(kind == PLOT_HEATMAP, &x, path, e)
                     : write_svg(r, kind, title[0] ? title : n->id, &x, path, e);
        vec_release(&x.v);
        TRY(st);
        run_saved(r, n, path);
    }
    flow_set(
        r, node, "image",
        (struct flow){.kind = FLOW_STRING, .string = arena_strdup(&r->memory, path)});
    return ST_OK;
}
