/* function_nodes.c - GraphInput and GraphOutput: a graph called as a function.
 *
 * A call puts its argument under the parameter `value`, which the table does not list; without one
 * the default is read as the input's type, so that the same graph runs on the canvas. What reaches
 * an output is in the result of the run: {"output": name, "value": ...}, or {"output", "code",
 * "message"} where JSON cannot hold it.
 */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/mem.h"
#include "data/image.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VALUES_MAX = 65536, IMAGE_MAX_PIXELS = 25000000 };

/* ---- inputs ---- */

static bool fill_numbers(const json_t *list, struct flow_numbers *v, int64_t *at)
{
    const json_t *item;
    size_t i;
    if (!json_is_array(list)) {
        bool number = json_is_number(list) || json_is_boolean(list);
        double x = json_is_boolean(list) ? json_is_true(list) : json_number_value(list);
        if (number && *at < shape_count(&v->shape))
            dtype_store(v->data, v->dtype, (*at)++, x);
        return number;
    }
    json_array_foreach(list, i, item) if (!fill_numbers(item, v, at)) return false;
    return true;
}

/* {"__type__": "tensor", "shape", "dtype", "values"}, as outputs are given. */
static enum status tensor_in(struct run *r, const json_t *from, struct flow *out, struct err *e)
{
    const json_t *shape = json_object_get(from, "shape"), *dim;
    const char *name = json_get_str(from, "dtype", "float32");
    struct shape s = {0};
    enum dtype t;
    size_t i;
    int64_t at = 0;
    if (!dtype_parse(str_starts(name, "torch.") ? name + 6 : name, &t))
        return err_set(e, ST_INVALID, "dtype \"%s\" is not known", name);
    if (!json_is_array(shape) || json_array_size(shape) > RANK_MAX)
        return err_set(e, ST_INVALID, "shape: a list of at most %d sizes", RANK_MAX);
    json_array_foreach(shape, i, dim)
    {
        s.dim[s.rank++] = json_integer_value(dim);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return err_set(e, ST_INVALID, "shape: sizes are whole numbers, 0 or more");
    }
    struct flow_numbers *v = flow_numbers_new(r, &s, t, e);
    if (!v)
        return ST_INVALID;
    if (!fill_numbers(json_object_get(from, "values"), v, &at) || at != shape_count(&s))
        return err_set(
            e, ST_INVALID, "values: not the %lld numbers of the shape", (long long)shape_count(&s));
    *out = (struct flow){.kind = FLOW_NUMBERS, .numbers = v};
    return ST_OK;
}

/* The bytes behind base64 text, which may begin as a data URL; NULL when it is none. */
static uint8_t *base64_bytes(const char *text, size_t *n)
{
    const char *comma = str_starts(text, "data:") ? strchr(text, ',') : NULL;
    uint32_t bits = 0;
    int have = 0;
    text = comma ? comma + 1 : text;
    uint8_t *out = mem_try_alloc(strlen(text) / 4 * 3 + 3);
    *n = 0;
    for (; out && *text && *text != '='; text++) {
        int digit = base64_digit(*text);
        if (*text == '\n' || *text == '\r')
            continue;
        if (digit < 0) {
            mem_free(out);
            return NULL;
        }
        bits = bits << 6 | (uint32_t)digit;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[(*n)++] = (uint8_t)(bits >> have);
        }
    }
    return out;
}

/* Channels, rows, columns, between 0 and 1. */
static enum status
image_flow(struct run *r, const struct image *im, struct flow *out, struct err *e)
{
    struct shape s = SHAPE(im->c, im->h, im->w);
    struct flow_numbers *v = flow_numbers_new(r, &s, DT_F32, e);
    if (!v)
        return ST_INVALID;
    float *to = v->data;
    size_t plane = (size_t)im->h * (size_t)im->w;
    for (size_t i = 0; i < plane; i++)
        for (int c = 0; c < im->c; c++)
            to[(size_t)c * plane + i] = (float)im->px[i * (size_t)im->c + (size_t)c] / 255.0f;
    *out = (struct flow){.kind = FLOW_NUMBERS, .numbers = v};
    return ST_OK;
}

static enum status
image_in(struct run *r, const char *text, bool is_path, struct flow *out, struct err *e)
{
    struct image im = {0};
    char path[1400], dir[1024];
    size_t n = 0;
    enum status st;
    if (is_path) {
        (void)path_join(run_graph_dir(r, dir, sizeof dir), text, path, sizeof path);
        st = image_read(path, &im, e);
    } else {
        uint8_t *bytes = base64_bytes(text, &n);
        st = bytes ? image_decode(bytes, n, "the image", IMAGE_MAX_PIXELS, &im, e)
                   : err_set(e, ST_INVALID, "the image is not in base64");
        mem_free(bytes);
    }
    if (st == ST_OK)
        st = image_flow(r, &im, out, e);
    image_release(&im);
    return st;
}

static struct flow json_flow(struct run *r, json_t *value)
{
    vec_push(&r->documents, value);
    return (struct flow){.kind = FLOW_JSON, .json = value};
}

static enum status value_in(
    struct run *r, const struct graph_node *n, const json_t *value, struct flow *out, struct err *e)
{
    const char *type = graph_param_str(n, "type");
    if (str_eq(type, "image") && json_is_string(value))
        return image_in(r, json_string_value(value), false, out, e);
    if (str_eq(json_get_str(value, "__type__", ""), "tensor"))
        return tensor_in(r, value, out, e);
    if (json_is_string(value))
        *out = (struct flow){
            .kind = FLOW_STRING, .string = arena_strdup(&r->memory, json_string_value(value))};
    else if (json_is_number(value))
        *out = (struct flow){.kind = FLOW_SCALAR, .scalar = json_number_value(value)};
    else
        *out = json_flow(r, json_deep_copy(value));
    return ST_OK;
}

/* The default is text, read as the type; one that cannot be is null. */
static enum status
default_in(struct run *r, const struct graph_node *n, struct flow *out, struct err *e)
{
    const char *type = graph_param_str(n, "type"), *text = graph_param_str(n, "default");
    if (str_eq(type, "image"))
        return image_in(r, text, true, out, e);
    json_t *value = str_eq(type, "string") ? json_string(text) : graph_default_read(text);
    value = value ? value : json_null();
    enum status st = value_in(r, n, value, out, e);
    json_decref(value);
    return st;
}

enum status node_graph_input(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    const json_t *given = json_object_get(n->params, "value");
    struct flow value = {0};
    if (given)
        TRY(value_in(r, n, given, &value, e));
    else
        TRY(default_in(r, n, &value, e));
    flow_set(r, node, "value", value);
    return ST_OK;
}

/* ---- outputs ---- */

static json_t *number_out(enum dtype t, double x)
{
    if (t == DT_BOOL)
        return json_boolean(x != 0);
    if (!dtype_floating(t))
        return json_integer((json_int_t)x);
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *nested(const struct flow_numbers *v, int dim, int64_t *at)
{
    if (dim == v->shape.rank)
        return number_out(v->dtype, dtype_load(v->data, v->dtype, (*at)++));
    json_t *list = json_array();
    for (int64_t i = 0; i < v->shape.dim[dim]; i++)
        (void)json_array_append_new(list, nested(v, dim + 1, at));
    return list;
}

static json_t *tensor_out(const struct flow_numbers *v)
{
    json_t *o = json_object(), *shape = json_array();
    char dtype[32];
    int64_t at = 0;
    for (int i = 0; i < v->shape.rank; i++)
        (void)json_array_append_new(shape, json_integer(v->shape.dim[i]));
    (void)snprintf(dtype, sizeof dtype, "torch.%s", dtype_name(v->dtype));
    json_put_str(o, "__type__", "tensor");
    json_put(o, "shape", shape);
    json_put_str(o, "dtype", dtype);
    json_put(o, "values", nested(v, 0, &at));
    return o;
}

static void refuse(json_t *result, const char *code, const char *text)
{
    json_put_str(result, "code", code);
    json_put_str(result, "message", text);
}

static void value_out(const struct flow *in, json_t *result)
{
    char text[128];
    if (in->kind == FLOW_NUMBERS && shape_count(&in->numbers->shape) > VALUES_MAX) {
        (void)snprintf(text, sizeof text, "a tensor of more than %d elements", VALUES_MAX);
        refuse(result, "output_too_large", text);
    } else if (in->kind == FLOW_NUMBERS) {
        json_put(result, "value", tensor_out(in->numbers));
    } else if (in->kind == FLOW_SCALAR) {
        json_put(result, "value", isfinite(in->scalar) ? json_real(in->scalar) : json_null());
    } else if (in->kind == FLOW_STRING) {
        json_put_str(result, "value", in->string);
    } else if (in->kind == FLOW_JSON) {
        json_put(result, "value", json_deep_copy(in->json));
    } else {
        (void)snprintf(text, sizeof text, "%s cannot be given as JSON", flow_name(in->kind));
        refuse(result, "unserializable_output", text);
    }
}

enum status node_graph_output(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow in = {0};
    if (!flow_has(r, node, "value", &in) || in.kind == FLOW_NONE)
        return err_set(
            e, ST_INVALID, "Missing required input 'value' on node %s (%s)", n->id, n->type);
    if (r->planning)
        return ST_OK;
    json_t *result = json_object();
    json_put_str(result, "output", graph_param_str(n, "name"));
    value_out(&in, result);
    json_put(r->results, n->id, result);
    return ST_OK;
}
