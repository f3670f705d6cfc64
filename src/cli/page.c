#include "page.h"

#include "table.h"

const char *const page_colours[PAGE_COLOURS] = {"#0072b2", "#56b4e9", "#009e73", "#f0e442",
                                                "#e69f00", "#d55e00", "#cc79a7", "#999999"};

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
    "code{overflow-wrap:anywhere}"
    "svg{display:block;width:100%;min-width:42em;height:auto;font:13px system-ui,sans-serif}"
    "svg text{fill:var(--ink)}"
    ".mark{stroke:var(--ink);stroke-width:1.5}"
    ".grid{stroke:var(--faint);stroke-width:0.7}"
    ".legend span{margin-right:1em;white-space:nowrap}"
    ".legend i{display:inline-block;width:0.9em;height:0.9em;margin-right:0.4em}"
    ".made{font-size:12px}"
    "table{border-collapse:collapse;font-size:13px}"
    "td,th{padding:0.15em 0.7em 0.15em 0;text-align:left;vertical-align:top}"
    "td{white-space:nowrap}"
    "td.why{white-space:normal;min-width:20em}"
    "td.n,th.n{text-align:right}"
    "small,.label{color:color-mix(in srgb,var(--ink) 70%,var(--paper))}";

void page_begin(FILE *file, const char *style)
{
    fprintf(file,
            "</title><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
            "<style>%s%s</style></head><body>\n",
            style_of_all, style);
}

void page_text(FILE *file, const char *text)
{
    for (size_t step = 1; *text != '\0'; text += step) {
        size_t control = table_control_bytes(text);
        step = control > 0 ? control : 1;
        if (control > 0)
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
            fputc(*text, file);
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
            "stroke=\"var(--paper)\" stroke-width=\"0.5\"><title>",
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
