// Browsers refuse workers on file://. There this one lives in a hidden frame, so that the search needs no server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.ready = new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        frame.onload = () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          script.src = address;
          script.onload = () => resolve(inside);
          inside.document.head.append(script);
        };
        document.body.append(frame);
      });
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
