/* raster.h - charts as pixels: the part of SVG that visualize.c writes, drawn into an RGB picture.
 *
 * Known: rect, line, circle, path of M and L, text of digits and ".-+e" (other texts are left out,
 * for pages put their own beside the picture). Everything else is skipped. Private to src/runner.
 */
#ifndef RUNNER_RASTER_H
#define RUNNER_RASTER_H

#include <stdint.h>

/* Draws `svg` over white; rgb has 3 w h bytes. */
void raster_svg(const char *svg, int w, int h, uint8_t *rgb);

#endif
