#include "plan_tools.h"

#include <criterion/criterion.h>
#include <string.h>

#include "engine_tools.h"

void plan_tools_profile(struct profile_file *out, const struct example_profile *example)
{
    struct error err;
    const char *path = tools_path(tools_folder(), "profile.json");
    profile_file_deinit(out);
    cr_assert(example_profile_write(example, path, &err), "%s", err.message);
    cr_assert_eq(profile_file_read(out, path, &err), STATUS_OK, "%s", err.message);
}

void plan_tools_mix(struct plan_mix *out, const struct plan_load *loads, int count,
                    int64_t context_max)
{
    static struct plan_cells cells;
    int64_t sequences = 0;
    memset(&cells, 0, sizeof cells);
    for (int i = 0; i < count; i++) {
        double own = (double)loads[i].sequences, output = (double)loads[i].output_tokens;
        const struct plan_cell more = {.sequences = own,
                                       .prompt_tokens = own * (double)loads[i].prompt_tokens,
                                       .output_tokens = own * output,
                                       .output_squares = own * output * output};
        plan_cell_add(&cells.of[plan_cell_of((double)loads[i].prompt_tokens, output)], &more);
        sequences += loads[i].sequences;
    }
    plan_mix_make(out, &cells, sequences, context_max);
}
