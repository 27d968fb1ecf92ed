"""The formats `executorch…`: programs that ExecuTorch runs in apps for Android and iOS and on small devices, by XNNPACK."""
