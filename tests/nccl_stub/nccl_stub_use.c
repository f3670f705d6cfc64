/* Linked into a program, it has the stub for NCCL. */
#include "nccl_stub_use.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

__attribute__((constructor)) static void nccl_is_the_stub(void)
{
    setenv("PHASOR_NCCL", NCCL_STUB, 1);
}

const struct nccl_stub *stub(void)
{
    static const struct nccl_stub *opened;
    if (opened != NULL)
        return opened;
    void *handle = dlopen(NCCL_STUB, RTLD_NOW | RTLD_LOCAL), *symbol;
    cr_assert_not_null(handle, "%s", dlerror());
    symbol = dlsym(handle, NCCL_STUB_GET);
    cr_assert_not_null(symbol);
    nccl_stub_get_type *get;
    memcpy(&get, &symbol, sizeof get);
    return opened = get();
}
