#include "config_texts.h"

#include <criterion/criterion.h>
#include <string.h>

#include "model_tools.h"

struct model_config config_of(const char *base, const char *changes)
{
    struct model_config config;
    struct error err;
    json_t *object = json_changed(base, changes);
    enum status status = model_config_parse(&config, object, NULL, "dir/config.json", &err);
    cr_assert_eq(status, STATUS_OK, "%s: %s", changes, status == STATUS_OK ? "" : err.message);
    json_decref(object);
    return config;
}

void check_config_rows(const struct config_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct model_config config, untouched;
        struct error err;
        memset(&config, 0x5A, sizeof config);
        memset(&untouched, 0x5A, sizeof untouched);
        json_t *object = json_changed(rows[i].base, rows[i].changes);
        struct resources before = resources_now();
        enum status status = model_config_parse(&config, object, NULL, "dir/config.json", &err);
        expect_failure(rows[i].changes, status, &err, rows[i].status, rows[i].fragments);
        if (status != STATUS_OK) {
            cr_expect_not_null(strstr(err.message, "dir/config.json"), "%s", err.message);
            cr_expect_eq(memcmp(&config, &untouched, sizeof config), 0, "%s: changed",
                         rows[i].changes);
        }
        expect_resources(rows[i].changes, before);
        json_decref(object);
    }
}
