/* image.c - decoding PNG and JPEG into RGB, writing PNG.
 *
 * libpng and libjpeg report errors by a jump out of their callbacks. Everything that must survive
 * the jump lies in a struct outside the function that calls setjmp, never in its locals.
 */
#include "data/image.h"

#include "base/env.h"
#include "base/mem.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

enum { FILE_BYTES_MAX = 256 * 1024 * 1024 };

enum status image_reserve(struct image *im, int w, int h, int c, struct err *e)
{
    size_t n = size_mul(size_mul((size_t)w, (size_t)h), (size_t)c);
    if (n > im->cap_bytes) {
        mem_free(im->px);
        im->cap_bytes = 0;
        im->px = mem_try_alloc(n);
        if (!im->px)
            return err_set(e, ST_OOM, "no host memory for an image of %d x %d", w, h);
        im->cap_bytes = n;
    }
    im->w = w;
    im->h = h;
    im->c = c;
    return ST_OK;
}

void image_release(struct image *im)
{
    mem_free(im->px);
    *im = (struct image){0};
}

size_t image_bytes(const struct image *im)
{
    return (size_t)im->w * (size_t)im->h * (size_t)im->c;
}

/* What a decoder needs, kept apart from the frames that a jump cuts off. */
struct decode {
    const uint8_t *bytes;
    size_t n, at;
    const char *name;
    int64_t pixels_max;
    bool header_only;
    struct image *out;
    struct err *e;
    enum status st;
    char text[JMSG_LENGTH_MAX]; /* the library's message */
    bool cut_off;               /* JPEG: the data ended early */
    png_bytep *rows;
};

static enum status check_size(struct decode *d, uint32_t w, uint32_t h)
{
    if (w == 0 || h == 0)
        return err_set(d->e, ST_CORRUPT, "image \"%s\" has no pixels", d->name);
    if (w > INT32_MAX / 4 || (int64_t)w * h > d->pixels_max)
        return err_set(
            d->e, ST_UNSUPPORTED, "image \"%s\" is %u x %u, more than the %lld pixels allowed",
            d->name, w, h, (long long)d->pixels_max);
    d->out->w = (int)w;
    d->out->h = (int)h;
    return ST_OK;
}

static enum status damaged(struct decode *d, const char *format)
{
    return err_set(d->e, ST_CORRUPT, "%s image \"%s\" is damaged: %s", format, d->name, d->text);
}

/* PNG */

static void on_png_error(png_structp png, png_const_charp text)
{
    struct decode *d = png_get_error_ptr(png);
    (void)snprintf(d->text, sizeof d->text, "%s", text);
    png_longjmp(png, 1);
}

static void on_png_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void png_from_memory(png_structp png, png_bytep into, png_size_t n)
{
    struct decode *d = png_get_io_ptr(png);
    if (n > d->n - d->at)
        png_error(png, "it ends early");
    memcpy(into, d->bytes + d->at, n);
    d->at += n;
}

/* Asks libpng for 8-bit RGB whatever is stored; alpha is dropped as Pillow's convert does. */
static void png_to_rgb(png_structp png)
{
    png_set_palette_to_rgb(png);
    png_set_expand_gray_1_2_4_to_8(png);
    png_set_strip_16(png);
    png_set_gray_to_rgb(png);
    png_set_strip_alpha(png);
}

static enum status png_rows(struct decode *d, png_structp png, png_infop info)
{
    uint32_t w = png_get_image_width(png, info), h = png_get_image_height(png, info);
    TRY(check_size(d, w, h));
    if (d->header_only)
        return ST_OK;
    png_to_rgb(png);
    (void)png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != (size_t)w * 3)
        return err_set(d->e, ST_UNSUPPORTED, "image \"%s\" has an unknown pixel format", d->name);
    TRY(image_reserve(d->out, (int)w, (int)h, 3, d->e));
    d->rows = mem_alloc(h * sizeof *d->rows);
    for (uint32_t y = 0; y < h; y++)
        d->rows[y] = d->out->px + (size_t)y * w * 3;
    png_read_image(png, d->rows);
    png_read_end(png, NULL);
    return ST_OK;
}

static enum status png_decode(struct decode *d)
{
    png_structp png =
        png_create_read_struct(PNG_LIBPNG_VER_STRING, d, on_png_error, on_png_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_read_struct(&png, NULL, NULL);
        return err_set(d->e, ST_OOM, "no host memory to decode \"%s\"", d->name);
    }
    if (setjmp(png_jmpbuf(png))) {
        d->st = damaged(d, "PNG");
    } else {
        png_set_read_fn(png, d, png_from_memory);
        png_read_info(png, info);
        d->st = png_rows(d, png, info);
    }
    png_destroy_read_struct(&png, &info, NULL);
    mem_free(d->rows);
    return d->st;
}

/* JPEG */

struct jpeg {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr handler;
    jmp_buf jump;
    struct decode *d;
};

static void on_jpeg_error(j_common_ptr cinfo)
{
    struct jpeg *j = cinfo->client_data;
    (*cinfo->err->format_message)(cinfo, j->d->text);
    longjmp(j->jump, 1);
}

/* Warnings are about data that decodes to something; only a file cut off is refused, as Pillow
 * does. */
static void on_jpeg_message(j_common_ptr cinfo, int level)
{
    struct jpeg *j = cinfo->client_data;
    int code = cinfo->err->msg_code;
    if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) {
        (*cinfo->err->format_message)(cinfo, j->d->text);
        j->d->cut_off = true;
    }
}

static int times_255(int a, int b)
{
    int t = a * b + 128;
    return (t + (t >> 8)) >> 8;
}

/* Four inks to RGB. Adobe's files hold them inverted. */
static void row_from_cmyk(const uint8_t *in, uint8_t *out, int w, bool inverted)
{
    for (int x = 0; x < w; x++) {
        int white = inverted ? in[4 * x + 3] : 255 - in[4 * x + 3];
        for (int c = 0; c < 3; c++) {
            int ink = inverted ? 255 - in[4 * x + c] : in[4 * x + c];
            int v = white - times_255(white, ink);
            out[3 * x + c] = (uint8_t)(v < 0 ? 0 : v);
        }
    }
}

static enum status jpeg_rows(struct jpeg *j)
{
    struct jpeg_decompress_struct *ci = &j->cinfo;
    struct decode *d = j->d;
    bool cmyk = ci->num_components == 4;
    TRY(check_size(d, ci->image_width, ci->image_height));
    if (d->header_only)
        return ST_OK;
    ci->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    TRY(image_reserve(d->out, (int)ci->image_width, (int)ci->image_height, 3, d->e));
    (void)jpeg_start_decompress(ci);
    JSAMPARRAY row = (*ci->mem->alloc_sarray)(
        (j_common_ptr)ci, JPOOL_IMAGE, ci->output_width * (JDIMENSION)ci->output_components, 1);
    while (ci->output_scanline < ci->output_height && !d->cut_off) {
        uint8_t *to = d->out->px + (size_t)ci->output_scanline * (size_t)d->out->w * 3;
        (void)jpeg_read_scanlines(ci, row, 1);
        if (cmyk)
            row_from_cmyk(row[0], to, d->out->w, ci->saw_Adobe_marker);
        else
            memcpy(to, row[0], (size_t)d->out->w * 3);
    }
    return d->cut_off ? damaged(d, "JPEG") : ST_OK;
}

static enum status jpeg_decode(struct decode *d)
{
    struct jpeg *j = mem_alloc(sizeof *j); /* on the heap: must survive the jump */
    j->d = d;
    j->cinfo.err = jpeg_std_error(&j->handler);
    j->handler.error_exit = on_jpeg_error;
    j->handler.emit_message = on_jpeg_message;
    j->cinfo.client_data = j;
    if (setjmp(j->jump)) {
        d->st = damaged(d, "JPEG");
    } else {
        jpeg_create_decompress(&j->cinfo);
        jpeg_mem_src(&j->cinfo, d->bytes, d->n);
        (void)jpeg_read_header(&j->cinfo, TRUE);
        d->st = jpeg_rows(j);
    }
    jpeg_destroy_decompress(&j->cinfo);
    mem_free(j);
    return d->st;
}

static enum status decode(struct decode *d)
{
    static const uint8_t png_magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (d->n >= 8 && memcmp(d->bytes, png_magic, 8) == 0)
        return png_decode(d);
    if (d->n >= 3 && d->bytes[0] == 0xff && d->bytes[1] == 0xd8 && d->bytes[2] == 0xff)
        return jpeg_decode(d);
    return err_set(
        d->e, d->n ? ST_UNSUPPORTED : ST_CORRUPT, "\"%s\" is %s", d->name,
        d->n ? "neither PNG nor JPEG" : "empty");
}

enum status image_decode(
    const uint8_t *bytes, size_t n, const char *name, int64_t pixels_max, struct image *out,
    struct err *e)
{
    struct decode d = {
        .bytes = bytes, .n = n, .name = name, .pixels_max = pixels_max, .out = out, .e = e};
    return decode(&d);
}

static enum status read_and_decode(const char *path, bool header, struct image *out, struct err *e)
{
    char *bytes = NULL;
    size_t n = 0;
    TRY(file_read(path, FILE_BYTES_MAX, &bytes, &n, e));
    struct decode d = {
        .bytes = (const uint8_t *)bytes,
        .n = n,
        .name = path,
        .pixels_max = IMAGE_PIXELS_MAX,
        .header_only = header,
        .out = out,
        .e = e};
    enum status st = decode(&d);
    mem_free(bytes);
    return st;
}

enum status image_read(const char *path, struct image *out, struct err *e)
{
    return read_and_decode(path, false, out, e);
}

enum status image_read_size(const char *path, int *w, int *h, struct err *e)
{
    struct image im = {0};
    TRY(read_and_decode(path, true, &im, e));
    *w = im.w;
    *h = im.h;
    return ST_OK;
}

static void write_rows(png_structp png, png_infop info, int w, int h, const uint8_t *rgb)
{
    png_set_IHDR(
        png, info, (png_uint_32)w, (png_uint_32)h, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
        PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    for (int y = 0; y < h; y++)
        png_write_row(png, rgb + (size_t)y * (size_t)w * 3);
    png_write_end(png, NULL);
}

enum status png_write(const char *path, int w, int h, const uint8_t *rgb, struct err *e)
{
    struct decode d = {.name = path, .e = e};
    struct file_whole file;
    if (w < 1 || h < 1)
        return err_set(e, ST_INVALID, "cannot write \"%s\": %d x %d pixels", path, w, h);
    TRY(file_whole_begin(&file, path, e));
    png_structp png =
        png_create_write_struct(PNG_LIBPNG_VER_STRING, &d, on_png_error, on_png_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_write_struct(&png, NULL);
        file_whole_abort(&file);
        return err_set(e, ST_OOM, "no host memory to write \"%s\"", path);
    }
    if (setjmp(png_jmpbuf(png))) {
        d.st = err_set(e, ST_IO, "could not write \"%s\": %s", path, d.text);
    } else {
        png_init_io(png, file.out);
        write_rows(png, info, w, h, rgb);
        d.st = ST_OK;
    }
    png_destroy_write_struct(&png, &info);
    if (d.st == ST_OK)
        return file_whole_commit(&file, e);
    file_whole_abort(&file);
    return d.st;
}
