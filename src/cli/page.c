#include "page.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "table.h"

const char *const page_colours[PAGE_COLOURS] = {"#0072b2", "#56b4e9", "#009e73", "#f0e442",
                                                "#e69f00", "#d55e00", "#cc79a7", "#999999"};

/* Within pictures. Who draws a plot may know no variables: so what it takes instead stands first.
 */
static const char style_of_pictures[] =
    ".mark{stroke:#222;stroke:var(--ink);stroke-width:1.5}"
    ".part{stroke:#fff;stroke:var(--paper);stroke-width:0.5}"
    ".grid{stroke:#bbb;stroke:var(--faint);stroke-width:0.7}"
    "text.tiny{font-size:10px;fill:#fff;paint-order:stroke;stroke:#0009;stroke-width:2px}"
    ".below{font-size:11px;text-anchor:end}";

/* Text and pictures are a column that can be read; a table is as wide as it needs to be, and
 * scrolls where the screen is narrower. */
static const char style_of_all[] =
    ":root{color-scheme:light dark;--ink:#222;--paper:#fff;--faint:#8888}"
    "@media(prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#181818;--faint:#aaa6}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);"
    "margin:2em 0;padding:0 1em}"
    "body>*{max-width:56rem;margin-left:auto;margin-right:auto}"
    "body>.wide{width:fit-content;min-width:min(56rem,100%);max-width:100%}"
    ".picture,.wide{overflow-x:auto}"
    "h1,h3,p,li,code{overflow-wrap:anywhere}"
    "svg{display:block;width:100%;min-width:42em;height:auto;font:13px system-ui,sans-serif}"
    "svg text{fill:var(--ink)}"
    ".legend span{margin-right:1em;white-space:nowrap}"
    ".legend i{display:inline-block;width:0.9em;height:0.9em;margin-right:0.4em}"
    ".made{font-size:12px}"
    "table{border-collapse:collapse;font-size:13px}"
    "td,th{padding:0.15em 0.7em 0.15em 0;text-align:left;vertical-align:top}"
    "td{white-space:nowrap}th{vertical-align:bottom}"
    "td.why{white-space:normal;min-width:20em}"
    "td.n,th.n{text-align:right}"
    "small,.label{color:color-mix(in srgb,var(--ink) 70%,var(--paper))}";

void page_begin(FILE *file)
{
    fprintf(file,
            "</title><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
            "<style>%s%s</style></head><body>\n",
            style_of_all, style_of_pictures);
}

/* Bytes of a character of UTF-8 by its first one; 0: none begins so. */
static size_t length_by(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xC0 || first >= 0xF8)
        return 0;
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* Whether XML has such a character, and UTF-8 none that says it in fewer bytes. */
static bool may_stand(uint32_t character, size_t length)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    bool is_surrogate = character >= 0xD800 && character < 0xE000;
    return character >= least[length] && character <= 0x10FFFF && !is_surrogate &&
           character != 0xFFFE && character != 0xFFFF;
}

/* Bytes of the character that the text begins with; 0: it begins with a byte of none. A path may
 * have any bytes, and a name may be cut within a character: one such byte would make a whole
 * picture unreadable. */
static size_t character_bytes(const char *text)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t length = length_by(bytes[0]);
    if (length <= 1)
        return length;
    uint32_t character = bytes[0] & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xC0) != 0x80) /* so is the text's end */
            return 0;
        character = character << 6 | (bytes[i] & 0x3Fu);
    }
    return may_stand(character, length) ? length : 0;
}

void page_text(FILE *file, const char *text)
{
    for (size_t step = 1; *text != '\0'; text += step) {
        size_t control = table_control_bytes(text), whole = character_bytes(text);
        step = control > 0 ? control : whole > 0 ? whole : 1;
        if (control > 0 || whole == 0)
            fputc('?', file);
        else if (*text == '<')
            fputs("&lt;", file);
        else if (*text == '>')
            fputs("&gt;", file);
        else if (*text == '&')
            fputs("&amp;", file);
        else if (*text == '"')
            fputs("&quot;", file);
        else
            fwrite(text, 1, step, file);
    }
}

void page_label(FILE *file, double x, double y, const char *anchor, const char *text)
{
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    page_text(file, text);
    fputs("</text>\n", file);
}

void page_rect(FILE *file, double x, double y, double width, double height, const char *colour,
               const char *title)
{
    fprintf(file,
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" "
            "class=\"part\"><title>",
            x, y, width, height, colour);
    page_text(file, title);
    fputs("</title></rect>\n", file);
}

void page_line(FILE *file, double x1, double y1, double x2, double y2, const char *style)
{
    fprintf(file, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1,
            x2, y2, style);
}

void page_made(FILE *file, const char *label, const char *command)
{
    fputs("<p class=\"made\"><b>", file);
    page_text(file, label);
    fputs("</b>: <code>", file);
    page_text(file, command);
    fputs("</code></p>\n", file);
}

void page_patches(FILE *file, const struct page_patch *patches, int count)
{
    fputs("<p class=\"legend\">", file);
    for (int i = 0; i < count; i++) {
        fprintf(file, "<span><i style=\"background:%s\"></i>", page_colours[patches[i].colour]);
        page_text(file, patches[i].name);
        fputs("</span> ", file);
    }
    fputs("</p>\n", file);
}

void page_picture_begin(FILE *file, int width, int height)
{
    fprintf(file, "<div class=\"picture\"><svg viewBox=\"0 0 %d %d\">\n", width, height);
}

void page_picture_end(FILE *file)
{
    fputs("</svg></div>\n", file);
}

/* ---- Plots ----------------------------------------------------------------------------------- */

#define PLOT_TOP     30 /* the title */
#define PATCH        12
#define PATCH_HEIGHT 22 /* a row of the legend */
#define LETTER       7  /* at most, of most words */

/* Below the picture, as many rows as they take. */
static int legend_place(FILE *file, const struct page_plot *plot)
{
    int x = PATCH, rows = 1;
    for (int i = 0; i < plot->patch_count; i++) {
        const struct page_patch *patch = &plot->patches[i];
        int width = 3 * PATCH + LETTER * (int)strlen(patch->name);
        if (x + width > plot->width && x > PATCH) {
            x = PATCH;
            rows++;
        }
        if (file != NULL) {
            int y = plot->height + rows * PATCH_HEIGHT;
            fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", x,
                    y - PATCH + 1, PATCH, PATCH, page_colours[patch->colour]);
            page_label(file, x + PATCH + 5, y, "start", patch->name);
        }
        x += width;
    }
    return rows;
}

void page_plot_begin(FILE *file, const struct page_plot *plot)
{
    int height = PLOT_TOP + plot->height + (legend_place(NULL, plot) + 1) * PATCH_HEIGHT + 6;
    fprintf(file,
            PAGE_PLOT_HEAD "viewBox=\"0 %d %d %d\" width=\"%d\" height=\"%d\">\n<style>"
                           "svg{--ink:#222;--paper:#fff;--faint:#8888;font:13px sans-serif}%s"
                           "</style>\n<title>",
            -PLOT_TOP, plot->width, height, plot->width, height, style_of_pictures);
    page_text(file, plot->title);
    fputs("</title>\n<desc>", file);
    page_text(file, plot->label);
    fputs(": ", file);
    page_text(file, plot->command);
    fprintf(file, "</desc>\n<rect y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", -PLOT_TOP,
            plot->width, height);
    page_label(file, PATCH, 18 - PLOT_TOP, "start", plot->title);
    legend_place(file, plot);
    page_label(file, PATCH, height - PLOT_TOP - 6, "start", plot->label);
}

void page_plot_end(FILE *file)
{
    fputs("</svg>\n", file);
}

void page_legend(FILE *file, const char *const *names, int count)
{
    fputs("<p class=\"legend\">", file);
    for (int i = 0; i < count; i++) {
        fprintf(file, "<span><i style=\"background:%s\"></i>", page_colours[i % PAGE_COLOURS]);
        page_text(file, names[i]);
        fputs("</span> ", file);
    }
    fputs("</p>\n", file);
}
