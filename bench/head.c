#include "head.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>

static void print_line_of(const char *what, const char *command)
{
    char line[256] = "unknown\n";
    FILE *out = popen(command, "r");
    if (out != NULL && fgets(line, sizeof line, out) == NULL)
        strcpy(line, "unknown\n");
    if (out != NULL)
        pclose(out);
    printf("# %s: %s%s", what, line, strchr(line, '\n') == NULL ? "\n" : "");
}

void bench_commit(char out[64])
{
    FILE *pipe = popen("git describe --always --dirty 2>/dev/null", "r");
    out[0] = 0;
    if (pipe == NULL)
        return;
    if (fgets(out, 64, pipe) == NULL)
        out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    pclose(pipe);
}

/* The commit is the tree's; benchmarks are built when they are asked for, so a program may be
 * older. */
static void print_program(void)
{
    char date[32], line[32] = "";
    struct stat program;
    FILE *pipe = popen("git log -1 --format=%ct 2>/dev/null", "r");
    if (pipe != NULL && fgets(line, sizeof line, pipe) == NULL)
        line[0] = 0;
    if (pipe != NULL)
        pclose(pipe);
    if (stat("/proc/self/exe", &program) != 0)
        return;
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", gmtime(&program.st_mtime));
    bool is_old = *line != 0 && program.st_mtime < (time_t)strtoll(line, NULL, 10);
    printf("# program: built %s UTC%s\n", date,
           is_old ? ", BEFORE the commit: build it anew, or the commit is not what was measured"
                  : "");
}

void bench_print_head(int argc, char **argv)
{
    char date[32], commit[64];
    time_t now = time(NULL);
    struct utsname system;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    printf("# date: %s\n", date);
    bench_commit(commit);
    printf("# commit: %s\n", *commit == 0 ? "unknown" : commit);
    print_program();
    print_line_of("processor", "grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | sed 's/^ //'");
    if (uname(&system) == 0) /* "6.18": what a vendor puts behind it tells nothing */
        printf("# system: %s %.*s %s, compiler %s\n", system.sysname,
               (int)strspn(system.release, "0123456789."), system.release, system.machine,
               __VERSION__);
    printf("# command:");
    for (int i = 0; i < argc; i++)
        printf(" %s", argv[i]);
    printf("\n");
}
