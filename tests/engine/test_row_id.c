#include <criterion/criterion.h>
#include <string.h>

#include "engine/row_id.h"

struct id_case {
    const char *line;
    const char *id; /* NULL: none is found */
};

Test(row_id, is_found_wherever_it_stands)
{
    static const struct id_case cases[] = {
        {"{\"custom_id\":\"a\"}", "a"},
        {" { \"custom_id\" : \"a\" , ", "a"},
        {"{\"body\":{\"custom_id\":\"no\",\"x\":[{\"}\":\"]\"}]},\"custom_id\":\"a\"}", "a"},
        {"{\"n\":1e309,\"custom_id\":\"a\"}", "a"},
        {"{\"n\":NaN,\"t\":true,\"custom_id\":\"a\"}", "a"},
        {"{\"x\":\"\\\"custom_id\\\":\\\"no\\\"\",\"custom_id\":\"a\"}", "a"},
        {"{\"custom_id\":\"\\u00e9\\n\"}", "\xC3\xA9\n"},
        {"{\"custom_id\":\"a\",\"body\":\"cut off", "a"},
        {"{\"custom\\u005fid\":\"a\"}", "a"},
        {"{\"custom\\u0000id\":\"no\",\"custom_id\":\"a\"}", "a"},
        {"{\"custom_id\":7}", NULL},
        {"{\"custom_id\":null}", NULL},
        {"{\"custom_id\":\"\\ud800\"}", NULL},
        {"{\"custom_id\":\"\xFF\"}", NULL},
        {"{\"custom_id\":\"a", NULL},
        {"{\"body\":{\"custom_id\":\"no\"}}", NULL},
        {"[\"custom_id\",\"a\"]", NULL},
        {"{\"custom_id\"}", NULL},
        {"{\"a\":1]\"custom_id\":\"a\"}", NULL},
        {"\"custom_id\":\"a\"", NULL},
        {"{", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text out = {0};
        bool found = row_id_find(&out, cases[i].line, strlen(cases[i].line));
        cr_expect_eq(found, cases[i].id != NULL, "%s", cases[i].line);
        if (found && cases[i].id != NULL)
            cr_expect_str_eq(out.bytes, cases[i].id, "%s", cases[i].line);
        if (!found)
            cr_expect_eq(out.length, 0);
        text_deinit(&out);
    }
}

Test(row_id, deep_nesting_costs_no_stack)
{
    static char line[1 << 22];
    struct text out = {0};
    memset(line, '[', sizeof line);
    memcpy(line, "{\"a\":", 5);
    cr_expect(!row_id_find(&out, line, sizeof line));
    text_deinit(&out);
}
