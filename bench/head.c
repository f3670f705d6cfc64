#include "head.h"

#include <stdio.h>
#include <string.h>
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

void bench_print_head(int argc, char **argv)
{
    char date[32], commit[64];
    time_t now = time(NULL);
    struct utsname system;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    printf("# date: %s\n", date);
    bench_commit(commit);
    printf("# commit: %s\n", *commit == 0 ? "unknown" : commit);
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
