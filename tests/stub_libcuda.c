/* A CUDA driver without a GPU, for Triton's launcher and for copies: every call succeeds, the last launch and copy are written down.

   stub_sizes says how many bytes each parameter of the kernel has; stub_values holds what they were, stub_config the grid, block, shared
   memory and stream. A tensor map is the bytes of what it was made of, so that equal ones are made of the same. */

#include <stdint.h>
#include <string.h>

#define MOST 64

int stub_count, stub_sizes[MOST], stub_launches, stub_maps;
unsigned char stub_values[MOST][128];
uint64_t stub_config[8];

struct config {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned attribute_count;
};

int cuLaunchKernelEx(const struct config *c, void *function, void **params, void **extra) {
  uint64_t found[8] = {c->grid[0], c->grid[1], c->grid[2], c->block[0], c->shared, (uint64_t)c->stream, (uint64_t)function, 0};
  memcpy(stub_config, found, sizeof found);
  for (int i = 0; i < stub_count; i++) memcpy(stub_values[i], params[i], stub_sizes[i]);
  stub_launches++;
  return 0;
}

int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *base, const uint64_t *shape, const uint64_t *strides,
                           const unsigned *block, const unsigned *element, int interleave, int swizzle, int promotion, int fill) {
  uint64_t made[16] = {type, rank, (uint64_t)base, shape[0], shape[1], strides[0], block[0], block[1], swizzle, fill};
  memcpy(map, made, sizeof made);
  stub_maps++;
  return 0;
}

uint64_t stub_copy[4];
int stub_copy_status;

int cuMemcpyAsync(uint64_t target, uint64_t source, size_t nbytes, void *stream) {
  uint64_t found[4] = {target, source, nbytes, (uint64_t)stream};
  memcpy(stub_copy, found, sizeof found);
  if (!stub_copy_status) memcpy((void *)target, (void *)source, nbytes);
  return stub_copy_status;
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) { return *(uint64_t *)value = pointer, 0; }
int cuCtxGetCurrent(void **context) { return *context = (void *)1, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { return *value = 232448, 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { return *value = 1024, 0; }
int cuModuleLoadData(void **module, const void *image) { return *module = (void *)2, 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return *function = (void *)3, 0; }
int cuGetErrorString(int error, const char **text) { return *text = "an error of the stub", 0; }

#define DOES_NOTHING(name) int name(void) { return 0; }
DOES_NOTHING(cuInit)
DOES_NOTHING(cuDriverGetVersion)
DOES_NOTHING(cuDeviceGet)
DOES_NOTHING(cuDevicePrimaryCtxRetain)
DOES_NOTHING(cuCtxSetCurrent)
DOES_NOTHING(cuCtxSetLimit)
DOES_NOTHING(cuCtxGetLimit)
DOES_NOTHING(cuCtxGetDevice)
DOES_NOTHING(cuFuncSetAttribute)
DOES_NOTHING(cuFuncSetCacheConfig)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuLaunchKernel)
DOES_NOTHING(cuOccupancyMaxActiveClusters)
DOES_NOTHING(cuStreamIsCapturing)
DOES_NOTHING(cuGetErrorName)
