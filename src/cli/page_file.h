/* The file of a page: made anew where it is one, and no other is lost. */
#ifndef PHASOR_CLI_PAGE_FILE_H
#define PHASOR_CLI_PAGE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct page_file {
    FILE *file;
    const char *path;      /* borrowed */
    char target[PATH_MAX]; /* what the path names, behind all links */
    char name[PATH_MAX];   /* of the file, which lies beside the target until it is whole; "": it
                            * is what the path names: a device, a pipe or standard output's file,
                            * which cannot be replaced */
};

/* All tell on standard error what is wrong. */

/* Whether there is no file, or an empty one, or a page that begins with `head`. `flag` is the one
 * that named it. */
bool page_file_check(const char *path, const char *head, const char *flag);

/* What is there stays as it is until the page is closed. */
bool page_file_open(struct page_file *out, const char *path);

/* Puts the page in its place; where it is not whole, or cannot be written, what was there stays. */
bool page_file_close(struct page_file *page, bool is_whole);

#endif
