/* dnnl.c - oneDNN's convolutions behind dnnl.h. */
#include "backends/cpu/dnnl.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if SNUG_DNNL
#include <oneapi/dnnl/dnnl.h>

/* 2.x describes memory by a struct, 3.x by a handle. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t md_own;
typedef const_dnnl_memory_desc_t md_ref;
#define MD_REF(own) (own)
#else
typedef dnnl_memory_desc_t md_own;
typedef const dnnl_memory_desc_t *md_ref;
#define MD_REF(own) (&(own))
#endif

enum role { X, W, Y, ROLES };

/* One operand: its form outside and inside, and how it gets from one to the other. */
struct side {
    dnnl_memory_t outer, inner; /* the same when the forms are equal */
    dnnl_primitive_t reorder;   /* NULL when they are */
    int64_t at;                 /* of the inner form in the workspace */
};

struct onednn_conv {
    struct onednn_conv_spec spec;
    dnnl_primitive_t conv;
    struct side side[ROLES];
    dnnl_memory_t bias, scratch;
    int64_t scratch_at, bytes, weights_bytes;
    /* Of the gradient's inner form and of scratch, zeroed before each run; 0: not needed. */
    size_t clear_bytes, clear_scratch_bytes;
    char name[64];
};

/* One engine and stream for the process, made on first use and kept. */
static struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attr; /* scratch memory comes from us */
    bool ready, tried;
} library;

static bool library_open(void)
{
    if (library.tried)
        return library.ready;
    library.tried = true;
    if (cpu_isa() == ISA_PORTABLE)
        return false;
    if (cpu_isa() == ISA_AVX2)
        (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
    library.ready =
        dnnl_engine_create(&library.engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&library.stream, library.engine, dnnl_stream_default_flags) ==
            dnnl_success &&
        dnnl_primitive_attr_create(&library.attr) == dnnl_success &&
        dnnl_primitive_attr_set_scratchpad_mode(library.attr, dnnl_scratchpad_mode_user) ==
            dnnl_success;
    /* Six programs of one run ask for the same primitives: they share them. */
    (void)dnnl_set_primitive_cache_capacity(1024);
    return library.ready;
}

bool onednn_has_bf16(void)
{
    return cpu_isa() >= ISA_AVX512 && library_open();
}

static dnnl_data_type_t type_of(enum dtype t)
{
    return t == DT_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* ---- memory descriptions ---- */

static bool
md_make(md_own *md, int rank, const dnnl_dim_t *dims, enum dtype t, dnnl_format_tag_t tag)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(md, rank, dims, type_of(t), tag) == dnnl_success;
#else
    return dnnl_memory_desc_init_by_tag(md, rank, dims, type_of(t), tag) == dnnl_success;
#endif
}
static void md_free(md_own *md)
{
#if DNNL_VERSION_MAJOR >= 3
    (void)dnnl_memory_desc_destroy(*md);
#else
    (void)md;
#endif
}

static bool activation_md(
    md_own *md, const struct conv_size *s, bool input, enum dtype t, enum layout l, bool any)
{
    const int64_t *size = input ? s->in : s->out;
    dnnl_dims_t dims = {s->n, input ? s->ic : s->oc, size[0], size[1]};
    dnnl_format_tag_t tag = l == LAYOUT_ROW ? dnnl_nchw : l == LAYOUT_CL ? dnnl_nhwc : dnnl_nChw16c;
    return md_make(md, 4, dims, t, any ? dnnl_format_tag_any : tag);
}

static bool weights_md(md_own *md, const struct conv_size *s, enum dtype t, bool any)
{
    if (s->groups == 1) {
        dnnl_dims_t dims = {s->oc, s->ic, s->kernel[0], s->kernel[1]};
        return md_make(md, 4, dims, t, any ? dnnl_format_tag_any : dnnl_oihw);
    }
    dnnl_dims_t dims = {
        s->groups, s->oc / s->groups, s->ic / s->groups, s->kernel[0], s->kernel[1]};
    return md_make(md, 5, dims, t, any ? dnnl_format_tag_any : dnnl_goihw);
}

/* ---- primitive descriptions ---- */

struct mds {
    md_own side[ROLES], bias;
};

static bool mds_make(struct mds *m, const struct onednn_conv_spec *s, bool any)
{
    memset(m, 0, sizeof *m);
    dnnl_dims_t channels = {s->size.oc};
    return activation_md(&m->side[X], &s->size, true, s->x, s->x_layout, any) &&
           activation_md(&m->side[Y], &s->size, false, s->y, s->y_layout, any) &&
           weights_md(&m->side[W], &s->size, s->w, true) &&
           md_make(&m->bias, 1, channels, s->bias, dnnl_x);
}
static void mds_free(struct mds *m)
{
    for (int i = 0; i < ROLES; i++)
        md_free(&m->side[i]);
    md_free(&m->bias);
}

/* The library reads whole dnnl_dims_t, whatever the rank. */
struct window {
    dnnl_dims_t stride, dilates, low, high;
};
static struct window window_of(const struct conv_size *z)
{
    struct window w = {{0}, {0}, {0}, {0}};
    for (int i = 0; i < 2; i++) {
        w.stride[i] = z->stride[i];
        w.dilates[i] = z->dilation[i] - 1; /* 0 is dense */
        w.low[i] = z->pad_low[i];
        w.high[i] = z->pad_high[i];
    }
    return w;
}

#if DNNL_VERSION_MAJOR >= 3
static dnnl_primitive_desc_t describe(
    const struct onednn_conv_spec *s, const struct mds *m, enum conv_way way,
    dnnl_primitive_desc_t hint, dnnl_alg_kind_t alg)
{
    const struct window z = window_of(&s->size);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t st;
    if (way == CONV_FORWARD)
        st = dnnl_convolution_forward_primitive_desc_create(
            &pd, library.engine, dnnl_forward_training, alg, m->side[X], m->side[W],
            s->has_bias ? m->bias : NULL, m->side[Y], z.stride, z.dilates, z.low, z.high,
            library.attr);
    else if (way == CONV_INPUT_GRAD)
        st = dnnl_convolution_backward_data_primitive_desc_create(
            &pd, library.engine, alg, m->side[X], m->side[W], m->side[Y], z.stride, z.dilates,
            z.low, z.high, hint, library.attr);
    else
        st = dnnl_convolution_backward_weights_primitive_desc_create(
            &pd, library.engine, alg, m->side[X], m->side[W], NULL, m->side[Y], z.stride, z.dilates,
            z.low, z.high, hint, library.attr);
    return st == dnnl_success ? pd : NULL;
}
#else
static dnnl_primitive_desc_t describe(
    const struct onednn_conv_spec *s, const struct mds *m, enum conv_way way,
    dnnl_primitive_desc_t hint, dnnl_alg_kind_t alg)
{
    const struct window z = window_of(&s->size);
    dnnl_convolution_desc_t d;
    dnnl_status_t st;
    if (way == CONV_FORWARD)
        st = dnnl_dilated_convolution_forward_desc_init(
            &d, dnnl_forward_training, alg, &m->side[X], &m->side[W], s->has_bias ? &m->bias : NULL,
            &m->side[Y], z.stride, z.dilates, z.low, z.high);
    else if (way == CONV_INPUT_GRAD)
        st = dnnl_dilated_convolution_backward_data_desc_init(
            &d, alg, &m->side[X], &m->side[W], &m->side[Y], z.stride, z.dilates, z.low, z.high);
    else
        st = dnnl_dilated_convolution_backward_weights_desc_init(
            &d, alg, &m->side[X], &m->side[W], NULL, &m->side[Y], z.stride, z.dilates, z.low,
            z.high);
    dnnl_primitive_desc_t pd = NULL;
    if (st == dnnl_success)
        st = dnnl_primitive_desc_create(&pd, &d, library.attr, library.engine, hint);
    return st == dnnl_success ? pd : NULL;
}
#endif

static const char *name_of(const_dnnl_primitive_desc_t pd)
{
    const char *name = NULL;
    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != dnnl_success || !name)
        return "";
    return name;
}

/* The library's JIT code; its "gemm" ways allocate for themselves, its "ref" ways are loops. */
static bool is_fast(const_dnnl_primitive_desc_t pd)
{
    return pd && !strstr(name_of(pd), "gemm") && !strstr(name_of(pd), "ref");
}

static dnnl_primitive_desc_t
describe_whole(const struct onednn_conv_spec *s, bool any, dnnl_alg_kind_t alg)
{
    struct mds m;
    struct onednn_conv_spec forward = *s;
    dnnl_primitive_desc_t pd = NULL, hint = NULL;
    if (mds_make(&m, s, any)) {
        if (s->way != CONV_FORWARD) {
            /* The hint's types are the forward's: a float32 gradient has no 16-bit input. */
            struct mds h;
            enum dtype low =
                s->x == DT_BF16 || s->w == DT_BF16 || s->y == DT_BF16 ? DT_BF16 : DT_F32;
            forward.x = forward.w = forward.y = low;
            if (mds_make(&h, &forward, any))
                hint = describe(&forward, &h, CONV_FORWARD, NULL, alg);
            mds_free(&h);
        }
        if (s->way == CONV_FORWARD || hint)
            pd = describe(s, &m, s->way, hint, alg);
    }
    mds_free(&m);
    if (hint)
        (void)dnnl_primitive_desc_destroy(hint);
    return pd;
}

static int64_t scratch_bytes(const_dnnl_primitive_desc_t pd)
{
    md_ref scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    return scratch ? (int64_t)dnnl_memory_desc_get_size(scratch) : 0;
}

/* Winograd's way computes tiles of 4 x 4 results with 36 products in place of 144. Below these
 * sizes the transforms cost more than they save. */
enum { TILE = 4, TILES_MIN = 48, CHANNELS_MIN = 32 };

static bool winograd_pays(const struct onednn_conv_spec *s)
{
    const struct conv_size *z = &s->size;
    int64_t tiles = z->n, results = z->n;
    if (s->x != DT_F32 || s->w != DT_F32 || s->y != DT_F32 || z->groups != 1)
        return false;
    if (s->x_layout != LAYOUT_C16 || s->y_layout != LAYOUT_C16)
        return false;
    for (int i = 0; i < 2; i++) {
        if (z->kernel[i] != 3 || z->stride[i] != 1 || z->dilation[i] != 1)
            return false;
        tiles *= (z->out[i] + TILE - 1) / TILE;
        results *= z->out[i];
    }
    return z->ic >= CHANNELS_MIN && z->oc >= CHANNELS_MIN && tiles >= TILES_MIN &&
           3 * tiles * TILE * TILE <= 4 * results;
}

static dnnl_primitive_desc_t describe_winograd(const struct onednn_conv_spec *s)
{
    if (!s->limit_bytes || !winograd_pays(s))
        return NULL;
    dnnl_primitive_desc_t pd = describe_whole(s, false, dnnl_convolution_winograd);
    if (is_fast(pd) && scratch_bytes(pd) <= s->limit_bytes)
        return pd;
    if (pd)
        (void)dnnl_primitive_desc_destroy(pd);
    return NULL;
}

/* In the layouts asked for, else in the library's own; NULL where it has no JIT code at all. */
static dnnl_primitive_desc_t describe_best(const struct onednn_conv_spec *s)
{
    dnnl_primitive_desc_t fewer_products = describe_winograd(s);
    if (fewer_products)
        return fewer_products;
    for (int any = 0; any < 2; any++) {
        dnnl_primitive_desc_t pd = describe_whole(s, any, dnnl_convolution_direct);
        if (is_fast(pd))
            return pd;
        if (pd)
            (void)dnnl_primitive_desc_destroy(pd);
    }
    return NULL;
}

/* ---- operands ---- */

static int64_t take(struct onednn_conv *c, md_ref md)
{
    int64_t at = c->bytes;
    c->bytes += ((int64_t)dnnl_memory_desc_get_size(md) + 63) / 64 * 64;
    return at;
}

static bool memory_make(dnnl_memory_t *out, md_ref md)
{
    return dnnl_memory_create(out, md, library.engine, DNNL_MEMORY_NONE) == dnnl_success;
}

static bool reorder_make(struct side *s, md_ref from, md_ref to)
{
    dnnl_primitive_desc_t pd = NULL;
    if (dnnl_reorder_primitive_desc_create(
            &pd, from, library.engine, to, library.engine, library.attr) != dnnl_success)
        return false;
    md_ref scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    bool ok = (!scratch || dnnl_memory_desc_get_size(scratch) == 0) &&
              dnnl_primitive_create(&s->reorder, pd) == dnnl_success;
    (void)dnnl_primitive_desc_destroy(pd);
    return ok;
}

/* Operand `i` of the convolution: its inner form is what the description chose. */
static bool side_make(struct onednn_conv *c, int i, md_ref inner, md_ref outer)
{
    struct side *s = &c->side[i];
    bool written = i == (c->spec.way == CONV_FORWARD ? Y : c->spec.way == CONV_INPUT_GRAD ? X : W);
    if (!memory_make(&s->outer, outer))
        return false;
    if (dnnl_memory_desc_equal(inner, outer)) {
        s->inner = s->outer;
        return true;
    }
    s->at = take(c, inner);
    return memory_make(&s->inner, inner) &&
           (written ? reorder_make(s, inner, outer) : reorder_make(s, outer, inner));
}

static bool sides_make(struct onednn_conv *c, const_dnnl_primitive_desc_t pd)
{
    static const dnnl_query_t queries[3][ROLES] = {
        {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
        {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
        {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
    const struct onednn_conv_spec *s = &c->spec;
    md_own outer[ROLES];
    if (!activation_md(&outer[X], &s->size, true, s->x, s->x_layout, false))
        return false;
    if (!activation_md(&outer[Y], &s->size, false, s->y, s->y_layout, false))
        return false;
    if (!weights_md(&outer[W], &s->size, s->w, false))
        return false;
    bool ok = true;
    for (int i = 0; i < ROLES && ok; i++) {
        md_ref inner = dnnl_primitive_desc_query_md(pd, queries[s->way][i], 0);
        if (i == W)
            c->weights_bytes = (int64_t)dnnl_memory_desc_get_size(inner);
        ok = side_make(c, i, inner, i == W && s->library_weights ? inner : MD_REF(outer[i]));
    }
    for (int i = 0; i < ROLES; i++)
        md_free(&outer[i]);
    return ok;
}

/* Whether some tap of the window only ever meets padding. The library's bf16 weight gradient then
 * leaves that tap's gradient, or its sum in scratch, as it found it instead of writing the zero. */
static bool dead_taps(const struct conv_size *s)
{
    for (int i = 0; i < 2; i++)
        for (int64_t k = 0; k < s->kernel[i]; k++) {
            bool meets = false;
            for (int64_t o = 0; o < s->out[i] && !meets; o++) {
                int64_t at = o * s->stride[i] - s->pad_low[i] + k * s->dilation[i];
                meets = at >= 0 && at < s->in[i];
            }
            if (!meets)
                return true;
        }
    return false;
}

/* Whether some input may lie in no window: between windows, or past the last one. */
static bool dead_inputs(const struct conv_size *s)
{
    for (int i = 0; i < 2; i++) {
        int64_t last =
            (s->out[i] - 1) * s->stride[i] - s->pad_low[i] + (s->kernel[i] - 1) * s->dilation[i];
        if (s->stride[i] > s->kernel[i] || (s->dilation[i] > 1 && s->stride[i] > 1) ||
            last < s->in[i] - 1)
            return true;
    }
    return false;
}

static size_t bytes_to_clear(const struct onednn_conv_spec *s, const_dnnl_primitive_desc_t pd)
{
    if (s->way == CONV_WEIGHT_GRAD && dead_taps(&s->size))
        return dnnl_memory_desc_get_size(
            dnnl_primitive_desc_query_md(pd, dnnl_query_diff_weights_md, 0));
    if (s->way == CONV_INPUT_GRAD && dead_inputs(&s->size))
        return dnnl_memory_desc_get_size(
            dnnl_primitive_desc_query_md(pd, dnnl_query_diff_src_md, 0));
    return 0;
}

static bool rest_make(struct onednn_conv *c, const_dnnl_primitive_desc_t pd)
{
    md_ref scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    c->clear_bytes = bytes_to_clear(&c->spec, pd);
    if (c->clear_bytes && c->spec.way == CONV_WEIGHT_GRAD)
        c->clear_scratch_bytes = dnnl_memory_desc_get_size(scratch);
    c->scratch_at = take(c, scratch);
    if (!memory_make(&c->scratch, scratch))
        return false;
    if (!c->spec.has_bias)
        return true;
    return memory_make(&c->bias, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 1));
}

struct onednn_conv *onednn_conv_new(const struct onednn_conv_spec *spec)
{
    if (!library_open())
        return NULL;
    dnnl_primitive_desc_t pd = describe_best(spec);
    if (!pd)
        return NULL;
    struct onednn_conv *c = mem_alloc(sizeof *c);
    c->spec = *spec;
    strncpy(c->name, name_of(pd), sizeof c->name - 1);
    bool ok = dnnl_primitive_create(&c->conv, pd) == dnnl_success && sides_make(c, pd) &&
              rest_make(c, pd);
    (void)dnnl_primitive_desc_destroy(pd);
    if (ok)
        return c;
    onednn_conv_free(c);
    return NULL;
}

void onednn_conv_free(struct onednn_conv *c)
{
    if (!c)
        return;
    for (int i = 0; i < ROLES; i++) {
        if (c->side[i].reorder)
            (void)dnnl_primitive_destroy(c->side[i].reorder);
        if (c->side[i].inner && c->side[i].inner != c->side[i].outer)
            (void)dnnl_memory_destroy(c->side[i].inner);
        if (c->side[i].outer)
            (void)dnnl_memory_destroy(c->side[i].outer);
    }
    if (c->bias)
        (void)dnnl_memory_destroy(c->bias);
    if (c->scratch)
        (void)dnnl_memory_destroy(c->scratch);
    if (c->conv)
        (void)dnnl_primitive_destroy(c->conv);
    mem_free(c);
}

int64_t onednn_conv_workspace_bytes(const struct onednn_conv *c)
{
    return c->bytes;
}
int64_t onednn_conv_weights_bytes(const struct onednn_conv *c)
{
    return c->weights_bytes;
}

/* ---- running ---- */

static bool handles_set(struct onednn_conv *c, const struct onednn_conv_data *d)
{
    void *outer[ROLES] = {d->x, d->w, d->y};
    char *room = d->workspace;
    for (int i = 0; i < ROLES; i++) {
        struct side *s = &c->side[i];
        if (dnnl_memory_set_data_handle(s->outer, outer[i]) != dnnl_success)
            return false;
        if (s->inner != s->outer &&
            dnnl_memory_set_data_handle(s->inner, room + s->at) != dnnl_success)
            return false;
    }
    union { /* the library reads the bias through a handle that is not const */
        const void *in;
        void *out;
    } bias = {.in = d->bias};
    if (c->bias && dnnl_memory_set_data_handle(c->bias, bias.out) != dnnl_success)
        return false;
    return dnnl_memory_set_data_handle(c->scratch, room + c->scratch_at) == dnnl_success;
}

static bool reorder_go(const struct side *s, bool back)
{
    if (!s->reorder)
        return true;
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_FROM, back ? s->inner : s->outer}, {DNNL_ARG_TO, back ? s->outer : s->inner}};
    return dnnl_primitive_execute(s->reorder, library.stream, 2, args) == dnnl_success;
}

static bool clear_gradient(struct onednn_conv *c)
{
    void *data;
    enum role out = c->spec.way == CONV_INPUT_GRAD ? X : W;
    if (c->clear_bytes == 0)
        return true;
    if (dnnl_memory_get_data_handle(c->side[out].inner, &data) != dnnl_success)
        return false;
    memset(data, 0, c->clear_bytes);
    if (c->clear_scratch_bytes == 0)
        return true;
    if (dnnl_memory_get_data_handle(c->scratch, &data) != dnnl_success)
        return false;
    memset(data, 0, c->clear_scratch_bytes);
    return true;
}

static bool convolve(struct onednn_conv *c)
{
    static const int names[3][ROLES] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
    dnnl_exec_arg_t args[ROLES + 2];
    int n = 0;
    for (int i = 0; i < ROLES; i++)
        args[n++] = (dnnl_exec_arg_t){names[c->spec.way][i], c->side[i].inner};
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, c->scratch};
    if (c->bias)
        args[n++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, c->bias};
    return dnnl_primitive_execute(c->conv, library.stream, n, args) == dnnl_success;
}

enum status onednn_conv_run(struct onednn_conv *c, const struct onednn_conv_data *d, struct err *e)
{
    static const enum role written[3] = {Y, X, W};
    enum role out = written[c->spec.way];
    bool ok = handles_set(c, d);
    for (enum role i = X; i < ROLES && ok; i++)
        ok = i == out || reorder_go(&c->side[i], false);
    ok = ok && clear_gradient(c) && convolve(c) && reorder_go(&c->side[out], true);
    if (dnnl_stream_wait(library.stream) != dnnl_success || !ok)
        return err_set(e, ST_INTERNAL, "oneDNN could not run a convolution (%s)", c->name);
    return ST_OK;
}

#else

bool onednn_has_bf16(void)
{
    return false;
}
struct onednn_conv *onednn_conv_new(const struct onednn_conv_spec *spec)
{
    (void)spec;
    return NULL;
}
void onednn_conv_free(struct onednn_conv *c)
{
    (void)c;
}
int64_t onednn_conv_workspace_bytes(const struct onednn_conv *c)
{
    (void)c;
    return 0;
}
int64_t onednn_conv_weights_bytes(const struct onednn_conv *c)
{
    (void)c;
    return 0;
}
enum status onednn_conv_run(struct onednn_conv *c, const struct onednn_conv_data *d, struct err *e)
{
    (void)c;
    (void)d;
    return err_set(e, ST_INTERNAL, "built without oneDNN");
}

#endif

const char *onednn_version(char *buf, size_t cap)
{
#if SNUG_DNNL
    const dnnl_version_t *v = dnnl_version();
    (void)snprintf(buf, cap, "%d.%d.%d", v->major, v->minor, v->patch);
#else
    (void)snprintf(buf, cap, "none");
#endif
    return buf;
}
