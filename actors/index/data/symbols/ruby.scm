(class name: (_) @name) @class
(module name: (_) @name) @module
(method name: (_) @name) @method
(singleton_method name: (_) @name) @method
(assignment left: (constant) @name) @constant
(superclass [(constant) @super (scope_resolution name: (constant) @super)])
(call method: (identifier) @call)
(comment) @attach
