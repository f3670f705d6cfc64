#include <criterion/criterion.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"

struct seen {
    int count;
    enum log_level level;
    char message[ERROR_MESSAGE_BYTES];
};

static void see(void *context, enum log_level level, const char *message)
{
    struct seen *seen = context;
    seen->count++;
    seen->level = level;
    strcpy(seen->message, message);
}

Test(log, one_sentence_without_control_characters)
{
    struct seen seen = {0};
    struct log_sink sink = {see, &seen};
    log_write(&sink, LOG_WARNING, "%d files\n%s", 3, "\x1B[2J");
    cr_assert_eq(seen.count, 1);
    cr_assert_eq(seen.level, LOG_WARNING);
    cr_assert_str_eq(seen.message, "3 files??[2J");
    log_write(&sink, LOG_DEBUG, "%2000d", 1);
    cr_assert_eq(seen.count, 2);
    cr_assert_eq(strlen(seen.message), ERROR_MESSAGE_BYTES - 1);
    cr_assert_str_eq(seen.message + ERROR_MESSAGE_BYTES - 5, " ...");
}

Test(log, silence)
{
    struct log_sink sink = {0};
    log_write(&sink, LOG_INFO, "nobody hears");
    log_write(NULL, LOG_INFO, "nobody hears");
}
