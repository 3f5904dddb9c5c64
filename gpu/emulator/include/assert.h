// Included again and again by design, as the standard's is.
#undef assert
#ifdef NDEBUG
#define assert(e) ((void)0)
#else
#define assert(e) ((e) ? (void)0 : refsim_assert(#e))
#endif
