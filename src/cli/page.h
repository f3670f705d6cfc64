/* Pieces of pages with pictures: text that cannot become markup, and shapes of SVG. Failures are
 * those of the file. */
#ifndef PHASOR_CLI_PAGE_H
#define PHASOR_CLI_PAGE_H

#include <stdio.h>

/* That stay apart for those who see few, on light and dark (Okabe and Ito, 2008). */
#define PAGE_COLOURS 8
extern const char *const page_colours[PAGE_COLOURS];

/* Behind a page's title: what every page has in its head, dark where the reader wants it so and as
 * wide as the reader's screen; then its body begins. */
void page_begin(FILE *file);

/* What a file or a model says of itself: '?' for each control character, and for each byte that is
 * not of UTF-8. */
void page_text(FILE *file, const char *text);

/* `anchor`: "start", "middle" or "end". */
void page_label(FILE *file, double x, double y, const char *anchor, const char *text);

/* A box whose `title` is shown to who points at it. */
void page_rect(FILE *file, double x, double y, double width, double height, const char *colour,
               const char *title);

void page_line(FILE *file, double x1, double y1, double x2, double y2, const char *style);

/* Below a heading: which clock its figures are of, and the command that made them. */
void page_made(FILE *file, const char *label, const char *command);

/* What a colour of a picture is. */
struct page_patch {
    int colour; /* of page_colours */
    char name[80];
};

/* Names behind patches. */
void page_patches(FILE *file, const struct page_patch *patches, int count);

/* A picture within a page, between the two. */
void page_picture_begin(FILE *file, int width, int height);
void page_picture_end(FILE *file);

/* A picture that is a file of its own: SVG, with what a page would say beside it. */
struct page_plot {
    int width, height; /* of the picture itself */
    char title[400];
    const char *label, *command; /* as of page_made() */
    struct page_patch patches[8];
    int patch_count;
};
void page_plot_begin(FILE *file, const struct page_plot *plot);
void page_plot_end(FILE *file);

/* What every such file begins with. */
#define PAGE_PLOT_HEAD                                                                             \
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "       \
    "class=\"phasor\" "

/* Names behind patches of page_colours[0], [1] ... */
void page_legend(FILE *file, const char *const *names, int count);

#endif
