/* The file of a page: made anew where it is one, and no other is lost. */
#ifndef PHASOR_CLI_PAGE_FILE_H
#define PHASOR_CLI_PAGE_FILE_H

#include <stdbool.h>
#include <stdio.h>

/* All tell on standard error what is wrong. */

/* Whether there is no file, or an empty one, or a page that begins with `head`. `flag` is the one
 * that named it. */
bool page_file_check(const char *path, const char *head, const char *flag);

FILE *page_file_open(const char *path); /* NULL: it cannot be */
bool page_file_close(FILE *file, const char *path);

#endif
