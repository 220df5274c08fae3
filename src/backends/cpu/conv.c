/* conv.c - the convolution operators: oneDNN where it serves, our own products elsewhere.
 *
 * Operands whose type the library lacks (f16, or bf16 without the instructions) are converted to
 * float32 in the workspace, some images at a time, so that no whole converted copy exists.
 */
#include "backends/cpu/args.h"
#include "backends/cpu/conv_own.h"
#include "backends/cpu/dnnl.h"
#include "backends/cpu/reorder.h"
#include "base/mem.h"

enum { CONVERTED_BYTES_MAX = 8 << 20 }; /* of activations at a time */

/* An operand as the convolution gets it: in place, or converted at `at` in the workspace. */
struct part {
    enum dtype dtype;
    enum layout layout;
    bool converted;
    int64_t at;
};

struct conv_state {
    enum conv_way way;
    struct conv_size size; /* of one chunk */
    int64_t chunks;
    int threads;
    struct onednn_conv *lib; /* NULL: our own */
    struct part x, w, y;
    bool bias_converted;
    int64_t bias_at, sum_at, rest_at; /* sum: weight gradients of the chunks so far */
    int64_t bytes;
};

/* The operands by role, whatever the direction. */
struct roles {
    enum conv_way way;
    const struct tensor *x, *w, *y, *bias;
};

static struct roles roles_of(const struct kernel_args *a)
{
    struct roles r = {CONV_FORWARD, &a->in[0], &a->in[1], &a->out[0], NULL};
    if (a->code == OP_CONV_DGRAD)
        r = (struct roles){CONV_INPUT_GRAD, &a->out[0], &a->in[1], &a->in[0], NULL};
    else if (a->code == OP_CONV_WGRAD)
        r = (struct roles){CONV_WEIGHT_GRAD, &a->in[0], &a->out[0], &a->in[1], NULL};
    if (a->code != OP_CONV_WGRAD && arg_present(a, 2))
        r.bias = &a->in[2];
    return r;
}

static void spatial_of(const struct tensor *t, int64_t size[2])
{
    int r = t->shape.rank;
    size[0] = r == 4 ? t->shape.dim[2] : 1;
    size[1] = t->shape.dim[r - 1];
}

static struct conv_size size_of(const struct conv_attr *a, const struct roles *r)
{
    struct conv_size s = {.n = r->x->shape.dim[0], .groups = a->groups};
    s.ic = r->x->shape.dim[1];
    s.oc = r->y->shape.dim[1];
    spatial_of(r->x, s.in);
    spatial_of(r->y, s.out);
    spatial_of(r->w, s.kernel);
    for (int i = 2 - a->spatial; i < 2; i++) {
        s.stride[i] = a->stride[i], s.dilation[i] = a->dilation[i];
        s.pad_low[i] = a->pad_low[i], s.pad_high[i] = a->pad_high[i];
    }
    if (a->spatial == 1)
        s.stride[0] = s.dilation[0] = 1;
    return s;
}

static bool is_empty(const struct conv_size *s)
{
    return s->n == 0 || s->ic == 0 || s->oc == 0;
}

/* ---- planning ---- */

static int64_t take(struct conv_state *s, int64_t bytes)
{
    int64_t at = s->bytes;
    s->bytes += (bytes + 63) / 64 * 64;
    return at;
}

static void part_set(struct part *p, const struct tensor *t, bool f32_row, bool f32)
{
    enum layout l = f32_row ? LAYOUT_ROW : t->layout;
    p->converted = (f32 && t->dtype != DT_F32) || l != t->layout;
    p->dtype = f32 ? DT_F32 : t->dtype;
    p->layout = l;
}

/* Types that oneDNN takes as they are: all float32, or bf16 with a result of either type. */
static bool native(const struct roles *r)
{
    const struct tensor *all[] = {r->x, r->w, r->y};
    int out = r->way == CONV_FORWARD ? 2 : r->way == CONV_INPUT_GRAD ? 0 : 1;
    enum dtype t = all[(out + 1) % 3]->dtype;
    if (t != all[(out + 2) % 3]->dtype)
        return false;
    if (t == DT_F32)
        return all[out]->dtype == DT_F32;
    return t == DT_BF16 && all[out]->dtype != DT_F16 && onednn_has_bf16();
}

static int64_t image_bytes(const struct conv_size *s, const struct part *p, bool input)
{
    const int64_t *size = input ? s->in : s->out;
    return p->converted ? (input ? s->ic : s->oc) * size[0] * size[1] * 4 : 0;
}

/* Cuts the batch so that the converted activations of a chunk stay small: a divisor of n. */
static void chunks_choose(struct conv_state *s)
{
    int64_t n = s->size.n;
    int64_t each = image_bytes(&s->size, &s->x, true) + image_bytes(&s->size, &s->y, false);
    int64_t chunk = n;
    while (chunk > 1 && (n % chunk || chunk * each > CONVERTED_BYTES_MAX))
        chunk--;
    s->chunks = n / chunk;
    s->size.n = chunk;
}

static void lib_choose(struct conv_state *s, const struct roles *r, int64_t limit_bytes)
{
    struct onednn_conv_spec spec = {.way = s->way, .size = s->size, .limit_bytes = limit_bytes};
    spec.x = s->x.dtype, spec.w = s->w.dtype, spec.y = s->y.dtype;
    spec.x_layout = s->x.layout, spec.y_layout = s->y.layout;
    spec.has_bias = r->bias && s->way == CONV_FORWARD;
    spec.bias = r->bias && !s->bias_converted ? r->bias->dtype : DT_F32;
    s->lib = onednn_conv_new(&spec);
}

static void parts_set(struct conv_state *s, const struct roles *r, bool own)
{
    bool f32 = own || !native(r);
    part_set(&s->x, r->x, own, f32);
    part_set(&s->y, r->y, own, f32);
    part_set(&s->w, r->w, own, f32);
    s->bias_converted = r->bias && r->bias->dtype != DT_F32 && (f32 || r->bias->dtype == DT_F16);
}

static void room_take(struct conv_state *s, const struct roles *r)
{
    s->x.at = take(s, s->size.n * image_bytes(&s->size, &s->x, true));
    s->y.at = take(s, s->size.n * image_bytes(&s->size, &s->y, false));
    int64_t weights = tensor_count(r->w) * 4;
    bool chunked = s->way == CONV_WEIGHT_GRAD && s->chunks > 1;
    s->w.at = take(s, s->w.converted || (chunked && s->lib) ? weights : 0);
    s->sum_at = take(s, chunked && s->lib ? weights : 0);
    s->bias_at = take(s, s->bias_converted ? tensor_count(r->bias) * 4 : 0);
    s->rest_at = take(
        s, s->lib ? onednn_conv_workspace_bytes(s->lib)
                  : conv_own_bytes(s->way, &s->size, s->threads));
}

static enum status
conv_prepare(const struct kernel_args *a, int64_t *workspace_bytes, void **state, struct err *e)
{
    struct roles r = roles_of(a);
    struct conv_state *s = mem_alloc(sizeof *s);
    s->way = r.way;
    s->size = size_of(&a->attr->conv, &r);
    s->threads = cpu_threads();
    *state = s;
    if (is_empty(&s->size))
        return ST_OK;
    struct conv_size whole = s->size;
    parts_set(s, &r, false);
    chunks_choose(s);
    lib_choose(s, &r, a->workspace_limit_bytes);
    if (!s->lib) {
        s->size = whole;
        parts_set(s, &r, true);
        chunks_choose(s);
    }
    room_take(s, &r);
    if (s->bytes < 0)
        return err_set(e, ST_OOM, "a convolution needs more workspace than can be addressed");
    *workspace_bytes = s->bytes;
    return ST_OK;
}

static void conv_release(void *state)
{
    struct conv_state *s = state;
    if (s)
        onednn_conv_free(s->lib);
    mem_free(s);
}

/* ---- running ---- */

/* Adds a bias per channel to [n, b, s, k] (see tensor.h). */
VEC_FN void channels_add(
    void *y, enum dtype t, enum layout l, const struct tensor *bias, int64_t n, int64_t c,
    int64_t s)
{
    int64_t k = l == LAYOUT_ROW ? 1 : l == LAYOUT_CL ? c : 16, blocks = c / k;
#pragma omp parallel for schedule(static) if (n * c * s > 32768)
    for (int64_t i = 0; i < n * blocks; i++)
        for (int64_t p = 0; p < s; p++)
            for (int64_t j = 0; j < k; j++) {
                int64_t at = (i * s + p) * k + j;
                float b = fload(bias->data, bias->dtype, i % blocks * k + j);
                fstore(y, t, at, fload(y, t, at) + b);
            }
}

static int64_t places_of(const struct tensor *t)
{
    int64_t size[2];
    spatial_of(t, size);
    return size[0] * size[1];
}

/* Where the images of a chunk lie in the tensor itself. */
static char *images_at(const struct tensor *t, int64_t first)
{
    return (char *)t->data + first * t->shape.dim[1] * places_of(t) * dtype_size(t->dtype);
}

/* Copies a chunk's images from the tensor to their converted form, or back. */
static void images_convert(
    const struct conv_state *s, const struct part *p, const struct tensor *t, int64_t first,
    void *room, bool back)
{
    struct lay outer = {images_at(t, first), t->dtype, t->layout};
    struct lay inner = {room, p->dtype, p->layout};
    reorder_copy(
        back ? outer : inner, back ? inner : outer, s->size.n, t->shape.dim[1], places_of(t));
}

static void flat_convert(void *to, enum dtype tt, const void *from, enum dtype tf, int64_t n)
{
    union {
        const void *in;
        void *out;
    } source = {.in = from};
    reorder_copy(
        (struct lay){to, tt, LAYOUT_ROW}, (struct lay){source.out, tf, LAYOUT_ROW}, 1, 1, n);
}

static enum status
chunk_run(const struct conv_state *s, struct onednn_conv_data *d, bool first, struct err *e)
{
    if (s->lib)
        return onednn_conv_run(s->lib, d, e);
    struct conv_own_data own = {d->x, d->w, d->y, d->bias, d->workspace};
    if (s->way != CONV_FORWARD)
        own.bias = NULL;
    conv_own_run(s->way, &s->size, &own, !first, s->threads);
    return ST_OK;
}

/* Chunk `c`: converts, runs, converts back. */
static enum status chunk_step(
    const struct conv_state *s, const struct roles *r, int64_t c, struct onednn_conv_data *d,
    char *room, struct err *e)
{
    int64_t first = c * s->size.n;
    d->x = s->x.converted ? room + s->x.at : images_at(r->x, first);
    d->y = s->y.converted ? room + s->y.at : images_at(r->y, first);
    if (s->x.converted && s->way != CONV_INPUT_GRAD)
        images_convert(s, &s->x, r->x, first, d->x, false);
    if (s->y.converted && s->way != CONV_FORWARD)
        images_convert(s, &s->y, r->y, first, d->y, false);
    TRY(chunk_run(s, d, c == 0, e));
    if (s->way == CONV_INPUT_GRAD && r->bias)
        DTYPE_CONST(
            s->x.dtype, T,
            channels_add(d->x, T, s->x.layout, r->bias, s->size.n, s->size.ic, places_of(r->x)));
    if (s->x.converted && s->way == CONV_INPUT_GRAD)
        images_convert(s, &s->x, r->x, first, d->x, true);
    if (s->y.converted && s->way == CONV_FORWARD)
        images_convert(s, &s->y, r->y, first, d->y, true);
    return ST_OK;
}

static void sum_add(float *sum, const void *w, enum dtype t, int64_t n, bool first)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] = (first ? 0 : sum[i]) + fload(w, t, i);
}

static enum status
chunks_run(const struct conv_state *s, const struct roles *r, char *room, struct err *e)
{
    int64_t weights = tensor_count(r->w);
    bool summed = s->lib && s->way == CONV_WEIGHT_GRAD && s->chunks > 1;
    bool apart = s->w.converted || summed;
    struct onednn_conv_data d = {.workspace = room + s->rest_at};
    d.w = apart ? room + s->w.at : r->w->data;
    if (s->w.converted && s->way != CONV_WEIGHT_GRAD)
        flat_convert(d.w, DT_F32, r->w->data, r->w->dtype, weights);
    if (r->bias)
        d.bias = s->bias_converted ? room + s->bias_at : r->bias->data;
    if (s->bias_converted)
        flat_convert(
            room + s->bias_at, DT_F32, r->bias->data, r->bias->dtype, tensor_count(r->bias));
    for (int64_t c = 0; c < s->chunks; c++) {
        TRY(chunk_step(s, r, c, &d, room, e));
        if (summed)
            sum_add((float *)(void *)(room + s->sum_at), d.w, s->w.dtype, weights, c == 0);
    }
    if (apart && s->way == CONV_WEIGHT_GRAD)
        flat_convert(
            r->w->data, r->w->dtype, summed ? room + s->sum_at : d.w, summed ? DT_F32 : s->w.dtype,
            weights);
    return ST_OK;
}

/* No images, or no channels: sums of nothing. */
static void empty_run(const struct roles *r)
{
    const struct tensor *out = r->way == CONV_FORWARD      ? r->y
                               : r->way == CONV_INPUT_GRAD ? r->x
                                                           : r->w;
    int64_t n = tensor_count(out);
    if (n <= 0)
        return;
    memset(out->data, 0, (size_t)n * (size_t)dtype_size(out->dtype));
    if (r->bias)
        channels_add(
            out->data, out->dtype, out->layout, r->bias, out->shape.dim[0], out->shape.dim[1],
            places_of(out));
}

static enum status conv_run(const struct kernel_args *a, struct err *e)
{
    const struct conv_state *s = a->state;
    struct roles r = roles_of(a);
    if (is_empty(&s->size)) {
        empty_run(&r);
        return ST_OK;
    }
    return chunks_run(s, &r, a->workspace, e);
}

const struct kernel KERNEL(conv) = {conv_prepare, conv_run, conv_release, "conv: oneDNN or packed"};
